//go:build !linux || !amd64

package clock

import (
	"errors"
	"fmt"
	"runtime"
	"time"
)

// Moved is a process whose wall clock is not that of the machine: there is none here.
type Moved struct{}

// Possible says that clocks cannot be moved here.
func Possible() error {
	return fmt.Errorf("clocks of processes can be moved on linux/amd64, not on %s/%s: %w", runtime.GOOS, runtime.GOARCH,
		errors.ErrUnsupported)
}

// Move fails.
func Move(int, time.Duration) (*Moved, error) { return nil, Possible() }

// Back fails.
func (*Moved) Back() error { return Possible() }
