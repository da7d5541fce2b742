package enroll

import (
	"fmt"
)

// UsageCode is the exit code when an option is wrong: starting again with the same ones is no use.
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
