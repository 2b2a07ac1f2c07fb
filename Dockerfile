# The gateway, with stores in Redis and budgets. From a copy of the repository (podman: --format docker, or it drops the HEALTHCHECK):
# docker build -t paceline .
# docker run --rm -v paceline:/data paceline keys add NAME        # at 0.0.0.0 clients need keys
# docker run -p 127.0.0.1:8080:8080 -e OPENAI_API_KEY -v paceline:/data paceline
FROM docker.io/library/python:3.13-slim
COPY pyproject.toml README.md LICENSE constraints.txt /src/
COPY src /src/src
RUN pip install --no-cache-dir -c /src/constraints.txt "/src[gateway,redis,budget]" \
    && useradd --system --uid 10001 gateway && install -d -o gateway /data/keys /data/paceline
COPY examples/gateway/healthcheck.py /usr/local/lib/paceline/
USER 10001
# The keys of clients are in /data/keys, what budgets have spent in /data/paceline. Of keys that are kept elsewhere mount the folder, not the
# file: `paceline keys` replaces the file, and the mount of a file keeps the old one, with revoked keys
ENV PACELINE_KEYS=/data/keys/keys.json XDG_STATE_HOME=/data
EXPOSE 8080
# With a certificate (serve --host 0.0.0.0 --tls-cert FILE --tls-key FILE), too. Of another --port it would have to be told
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["python", "/usr/local/lib/paceline/healthcheck.py"]
ENTRYPOINT ["paceline"]
CMD ["serve", "--host", "0.0.0.0"]
