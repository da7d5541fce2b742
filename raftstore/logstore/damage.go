package logstore

import (
	"errors"
	"fmt"
)

// CorruptError is returned if the data on disk differ from the written ones. Nothing was changed.
type CorruptError struct {
	File   string // the file, or the directory
	Place  string // where in it: a page, an offset, an entry; may be empty
	Reason error
}

func (e *CorruptError) Error() string {
	place := ""
	if e.Place != "" {
		place = " at " + e.Place
	}
	return fmt.Sprintf(
		"%s is damaged%s: %v; this server cannot be trusted with this directory any more: remove it from "+
			"the cluster and let it join again with an empty one, or, when no other server is left, restore a backup",
		e.File, place, e.Reason)
}

func (e *CorruptError) Unwrap() error { return e.Reason }

// corrupt returns a CorruptError.
func corrupt(file, place, format string, args ...any) error {
	return &CorruptError{File: file, Place: place, Reason: fmt.Errorf(format, args...)}
}

// guarded calls a library function that does not expect damaged files, and turns its panic into an
// error.
func guarded(call func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errPanic, r)
		}
	}()
	return call()
}

var errPanic = errors.New("it could not be read")
