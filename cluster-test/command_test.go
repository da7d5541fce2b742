package clustertest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// fatal is a test that notes that it was failed.
type fatal struct {
	testing.TB
	failed bool
}

func (f *fatal) Helper()             {}
func (f *fatal) Logf(string, ...any) {}
func (f *fatal) Fatal(...any) {
	f.failed = true
	panic(f)
}

// A failed command is run again only when the proxy has cut connections meanwhile, and only then an
// effect that is there already counts as success.
func TestDone(t *testing.T) {
	const refused, exists = "refused", "Error from server (AlreadyExists): it is there"
	for name, test := range map[string]struct {
		args   []string
		cut    string // state of the server whose connections the proxy cuts at the first try
		errs   []string
		failed bool
		tries  int
	}{
		"done":                       {[]string{"get", "pods"}, "", []string{""}, false, 1},
		"refused":                    {[]string{"get", "pods"}, "", []string{refused, ""}, true, 1},
		"there already":              {[]string{"create", "x"}, "", []string{exists, ""}, true, 1},
		"cut":                        {[]string{"get", "pods"}, "silent", []string{refused, ""}, false, 2},
		"cut, and refused":           {[]string{"get", "pods"}, "silent", []string{refused, refused}, true, 2},
		"cut, and made all the same": {[]string{"create", "x"}, "silent", []string{refused, exists}, false, 2},
		"cut, and there":             {[]string{"get", "x"}, "silent", []string{refused, exists}, true, 2},
		"cut from a dead server":     {[]string{"get", "pods"}, "dead", []string{refused, ""}, true, 1},
		"cut in an undoing":          {[]string{"rollout", "undo"}, "silent", []string{refused, ""}, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &Cluster{Dir: t.TempDir()}
				log := filepath.Join(c.Dir, "proxy.log")
				note := func(at time.Time, is string) {
					f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
					if err == nil {
						_, err = f.WriteString(
							"time=" + at.UTC().Format("2006-01-02T15:04:05.000Z07:00") +
								` level=INFO msg="connections are cut: another API server is better" server=10.77.0.11:6443 is=` + is + " connections=2 other=10.77.0.12:6443\n")
					}
					if err = errors.Join(err, f.Close()); err != nil {
						t.Fatal(err)
					}
				}
				note(time.Now().Add(-time.Second), "silent") // before
				tries, f := 0, &fatal{TB: t}
				func() {
					defer func() {
						if p := recover(); p != nil && p != any(f) {
							panic(p)
						}
					}()
					c.done(f, test.args, func() Result {
						if tries++; tries == 1 && test.cut != "" {
							note(time.Now(), test.cut)
							time.Sleep(2 * time.Millisecond) // the log shows as much as before
						}
						r := Result{Err: test.errs[tries-1]}
						if r.Err != "" {
							r.Error = errors.New(r.Err)
						}
						return r
					})
				}()
				if f.failed != test.failed || tries != test.tries {
					t.Errorf("failed: %v, want %v; %d tries, want %d", f.failed, test.failed, tries, test.tries)
				}
			})
		})
	}
}
