package speaker

import (
	"errors"
	"strings"
	"testing"
)

// A panic of the library that reads a router's bytes ends the session, and not the node.
func TestAPanicOfTheLibraryIsAFault(t *testing.T) {
	err := decoded(func() error { panic("index out of range") })
	if _, ok := errors.AsType[*fault](err); !ok || !strings.Contains(err.Error(), "index out of range") {
		t.Errorf("got %v", err)
	}
	if err := decoded(func() error { return nil }); err != nil {
		t.Errorf("a good message: %v", err)
	}
}
