package audit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/klog/v2"
)

// TestUpstreamsFlags: every flag of kube-apiserver's is there, with help of ours.
func TestUpstreamsFlags(t *testing.T) {
	ours, theirs := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	NewOptions().AddFlags(ours)
	genericoptions.NewAuditOptions().AddFlags(theirs)
	n := 0
	theirs.VisitAll(func(f *pflag.Flag) {
		n++
		switch own := ours.Lookup(f.Name); {
		case own == nil:
			t.Errorf("--%s is missing", f.Name)
		case own.Usage == f.Usage && f.Deprecated == "":
			t.Errorf("--%s has upstream's help", f.Name)
		}
	})
	if n < 30 {
		t.Errorf("only %d flags", n)
	}
}

func TestPath(t *testing.T) {
	for args, want := range map[string]string{
		"":                         "/data/audit.log",
		"--audit-log-path=":        "",
		"--audit-log-path=none":    "",
		"--audit-log-path=-":       "-",
		"--audit-log-path=/a/b":    "/a/b",
		"--audit-log-maxsize=1":    "/data/audit.log",
		"--audit-log-mode=batch":   "/data/audit.log",
		"--audit-log-path=/x/none": "/x/none",
	} {
		o, fs := NewOptions(), pflag.NewFlagSet("", pflag.ContinueOnError)
		o.AddFlags(fs)
		if err := fs.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if got := o.Path("/data/audit.log"); got != want {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
		if err := o.Check(); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestBadOptions(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "hook.yaml")
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--audit-log-mode=later":                               "later",
		"--audit-log-format=xml":                               "xml",
		"--audit-log-maxage=-1":                                "--audit-log-maxage",
		"--audit-log-version=v1":                               "version",
		"--audit-log-batch-buffer-size=0":                      "buffer size",
		"--audit-webhook-config-file=" + bad:                   bad,
		"--audit-webhook-config-file=/nowhere/hook":            "/nowhere/hook",
		"--audit-policy-file=/nowhere/policy":                  "/nowhere/policy",
		"--audit-log-truncate-max-event-size=0":                "event size",
		"--audit-webhook-config-file=x --audit-webhook-mode=x": "mode",
	} {
		o, fs := NewOptions(), pflag.NewFlagSet("", pflag.ContinueOnError)
		o.AddFlags(fs)
		if err := fs.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}

// TestMain keeps upstream's line for each lost event out of the output.
func TestMain(m *testing.M) {
	klog.SetSlogLogger(quiet)
	os.Exit(m.Run())
}
