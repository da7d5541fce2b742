// Package clock moves the wall clock of one running process, as an NTP correction or a bad clock
// chip moves that of a machine, without touching the machine's clock or any other process.
//
// Programs read the time through code of the kernel's that is mapped into each of them, the vDSO.
// The mapping is private: only that process sees writes to it. While the process is stopped,
// clock_gettime there is led to a few instructions, put into the unused end of the mapping, that
// make the system call and add an offset to CLOCK_REALTIME. The monotonic clock stays, as it does
// when a machine's clock is set.
//
// Limits. Readers of other clocks than the vDSO's clock_gettime have the true time: processes that
// the moved one starts later, times that the kernel writes (of files), gettimeofday and time(2),
// timers on CLOCK_REALTIME. A Go program reads all its times with clock_gettime, and its timers are
// monotonic. Linux on amd64 only; see Possible. It takes the rights to trace the process.
package clock
