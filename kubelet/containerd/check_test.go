package containerd

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/kubelet/bundle"
)

// TestCheckSeccomp: the kernel's filters are of no use to a runc that was built without them.
func TestCheckSeccomp(t *testing.T) {
	with := func(text string, err error) func() ([]byte, error) {
		return func() ([]byte, error) { return []byte(text), err }
	}
	for name, c := range map[string]struct {
		kernel   string
		features func() ([]byte, error)
		passes   bool
		says     string
	}{
		"both": {os.DevNull, with(`{"linux":{"seccomp":{"enabled":true}}}`, nil), true,
			"the kernel and runc"},
		"runc without": {os.DevNull, with(`{"linux":{"seccomp":{"enabled":false}}}`, nil), false,
			"install libseccomp-dev"},
		"an old runc":       {os.DevNull, with(`{}`, nil), false, "runc was built without"},
		"runc does not run": {os.DevNull, with("", errors.New("exec format error")), true, "exec format error"},
		"no JSON":           {os.DevNull, with("x", nil), true, "does not say"},
		"no runc": {os.DevNull, with("", fmt.Errorf("%w (x)", bundle.ErrNotBundled)), true,
			"another runtime"},
		"a kernel without": {"/nothing", with(`{"linux":{"seccomp":{"enabled":true}}}`, nil), false,
			"CONFIG_SECCOMP_FILTER"},
		"a kernel and neither": {"/nothing", with("", bundle.ErrNotBundled), false, "the kernel has no"},
	} {
		f := checkSeccomp(c.kernel, c.features)
		if f.OK != c.passes || !strings.Contains(fmt.Sprint(f), c.says) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestOurRuncHasSeccomp asks the built-in runc itself.
func TestOurRuncHasSeccomp(t *testing.T) {
	raw, err := bundle.Features()
	if errors.Is(err, bundle.ErrNotBundled) {
		needs.Missing(t, "the built-in programs (make bundle)", "the system call filters of the built-in runc")
	}
	if err != nil || !strings.Contains(string(raw), "ociVersionMax") {
		t.Fatalf("%v: %s", err, raw)
	}
	if f := checkSeccomp(os.DevNull, bundle.Features); !f.OK {
		t.Errorf("%+v", f)
	}
}
