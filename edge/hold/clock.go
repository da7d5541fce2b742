package hold

import (
	"time"

	"golang.org/x/sys/unix"
)

// Instant is a reading of a machine's CLOCK_BOOTTIME. Instants of different machines cannot be
// compared.
type Instant time.Duration

// Add returns the instant after a duration.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns the duration since an earlier instant.
func (i Instant) Sub(earlier Instant) time.Duration { return time.Duration(i - earlier) }

// Boot reads CLOCK_BOOTTIME.
func Boot() Instant {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("hold: CLOCK_BOOTTIME: " + err.Error()) // Linux has it since 2.6.39
	}
	return Instant(t.Nano())
}
