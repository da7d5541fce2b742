package connlimit

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestFlags: wrong numbers and ranges are refused with the flag's name.
func TestFlags(t *testing.T) {
	for _, c := range []struct {
		args, bad string
	}{
		{"", ""},
		{"--max-unauthenticated-connections=5000 --max-unauthenticated-connections-per-source=5000", ""},
		{"--max-unauthenticated-connections-exempt=192.0.2.7,2001:db8::/32", ""},
		{"--max-unauthenticated-connections=0", "--max-unauthenticated-connections 0"},
		{"--max-unauthenticated-connections=100", "want 1 to 100"},
		{"--max-unauthenticated-connections-per-source=-1", "per-source -1"},
		{"--max-unauthenticated-connections-exempt=gateway", `exempt "gateway"`},
	} {
		f, set := NewFlags(), pflag.NewFlagSet("", pflag.ContinueOnError)
		f.AddFlags(set)
		if err := set.Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		_, err := f.Limits()
		if c.bad == "" && err != nil || c.bad != "" && (err == nil || !strings.Contains(err.Error(), c.bad)) {
			t.Errorf("%s: %v, want %q", c.args, err, c.bad)
		}
	}
}
