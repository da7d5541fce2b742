package images

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/barque/barque/kubelet/cri"
)

// TestWithRuntime: the error of a runtime that does not answer names its socket. Other errors stay
// as they are.
func TestWithRuntime(t *testing.T) {
	other := errors.New("x")
	for says, failed := range map[string]error{
		"":  nil,
		"x": other,
		"the container runtime at /run/none.sock does not answer: nobody is there; is the node running, and is --data-dir right?": status.Error(codes.Unavailable, "nobody is there"),
	} {
		err := WithRuntime("/run/none.sock", func(*cri.Client) error { return failed })
		if (err == nil) != (says == "") || err != nil && err.Error() != says {
			t.Errorf("%v; want %q", err, says)
		}
	}
	if err := WithRuntime("none.sock", func(*cri.Client) error { return other }); err == nil ||
		!strings.Contains(err.Error(), "none.sock") {
		t.Errorf("a socket that cannot be: %v", err)
	}
}
