package enroll

import (
	"fmt"
)

// UsageCode is the exit code for a wrong option. A restart with the same options would fail again.
const UsageCode = 2

// usageError is returned when an option is wrong.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// ExitCode is the code with which the process should end.
func (e *usageError) ExitCode() int { return UsageCode }

// WrongOption returns an error for an option that is wrong.
func WrongOption(format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...)}
}
