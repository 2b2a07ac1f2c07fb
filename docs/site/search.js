// Appended to the worker of the search, which finds only pages that have every word of a query. Where there is none, the pages that
// have as many of its words as possible are found: words that say little are left out first, then one word, then two, and so on. Pages that
// explain come before the reference, unless the query is a name of the code, and those for developers come last.
{
  const [SETUP, QUERY, RESULT] = [0, 2, 3]; // the kinds of messages of the worker
  const SAY_LITTLE = new Set(
    ("a an and are as at be by can do does for from get has have how i if in is it its me my not of on or our so that the their there " +
      "they this to was we what when where which who why will with without you your").split(" "),
  );
  const search = self.onmessage;
  const send = self.postMessage.bind(self);
  const BEHIND = /\/(api_\w+|cli)\.html/;
  const LAST = /\/(examples|files|dev)\/|\/(systems|packages|promises|benchmarks|benchmarks_peers|architecture|design|contributing|changelog|releasing|security)\.html/;
  const NAME = /[._]|\w[A-Z]/;
  const QUESTION = /^(what|where|which|how|when|why)( (is|are|do|does|can|to))?( (a|an|the|i|my|you))? (?=\S)/i;
  let separator;
  let places = [];

  const found = (data) => {
    let result;
    self.postMessage = (message) => (result = message); // it answers before it returns
    search({ data: { type: QUERY, data: structuredClone(data) } });
    self.postMessage = send;
    return result;
  };
  // Each way to choose `count` of `words`, those with the last words left out first.
  const chosen = (words, count) =>
    count === 0
      ? [[]]
      : words.flatMap((word, at) => chosen(words.slice(at + 1), count - 1).map((others) => [word, ...others]));

  self.onmessage = (message) => {
    const { type, data } = message.data;
    if (type === QUERY && typeof data.input === "string") data.input = data.input.replace(QUESTION, "");
    if (type === SETUP) {
      separator = new RegExp(data.config.separator, "u");
      places = data.items.map((item) => item.location);
    }
    if (type !== QUERY || typeof data.input !== "string" || data.page) return search(message);
    const words = data.input.toLowerCase().split(separator).filter(Boolean).slice(0, 8);
    const telling = words.filter((word) => !SAY_LITTLE.has(word));
    let result = found(data);
    for (let count = telling.length; count > 0 && result?.type === RESULT && !result.data.items.length; count--) {
      for (const some of chosen(telling, count)) {
        const next = found({ ...data, input: some.join(" ") });
        if (next?.type === RESULT && next.data.items.length) {
          result = next;
          break;
        }
      }
    }
    if (result?.type === RESULT && !NAME.test(data.input.trim())) {
      const rank = ({ id }) => (LAST.test(places[id]) ? 2 : BEHIND.test(places[id]) ? 1 : 0);
      result.data.items.sort((one, other) => rank(one) - rank(other));
    }
    if (result) send(result);
  };
}
