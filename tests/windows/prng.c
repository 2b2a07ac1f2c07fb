/* wine 8 has no bcryptprimitives.dll, of which CPython takes one function. */
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID buffer, ULONG length);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE buffer, SIZE_T size)
{
    return SystemFunction036(buffer, (ULONG)size);
}
