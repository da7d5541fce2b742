// Package needs declares a test's requirements that not every machine meets. Without them the test
// is skipped, and the missing requirement and the untested part are reported. The report is in the
// test's output, and in the file that NOT_TESTED in the environment names, which `make test-unit`
// and `make test-e2e` show at their end. The output of a passing run would not show a skipped test.
//
// It is not for tests that never run by themselves (the bodies of child processes), nor for cases
// that do not apply.
package needs

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// fileVariable names the file that gets the untested parts.
const fileVariable = "NOT_TESTED"

// Missing skips the test: the machine lacks something, and so something is not tested.
func Missing(t testing.TB, what, untested string) {
	t.Helper()
	t.Skip(tell(t, fmt.Sprintf("NOT TESTED: %s (%s): it takes %s", untested, t.Name(), what)))
}

// LeftOut reports each part that a test leaves out, with the reason, as Missing does. The test goes
// on.
func LeftOut(t testing.TB, parts []error) {
	t.Helper()
	for _, part := range parts {
		t.Log(tell(t, fmt.Sprintf("NOT TESTED: a part of %s: %v", t.Name(), part)))
	}
}

func tell(t testing.TB, text string) string {
	t.Helper()
	// Read here only: the results of tests that miss nothing are cached without regard to it.
	if path := os.Getenv(fileVariable); path != "" {
		if err := note(path, text); err != nil {
			t.Fatalf("%s, and that could not be noted: %v", text, err)
		}
	}
	return text
}

func note(path, text string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(f, text); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// AllTests skips the test in a short run (go test -short), as in `make test`. It is for tests in
// `make test-all` that take long and go deeper than a shorter test of the same part.
func AllTests(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("left to make test-all: this run is short")
	}
}

// Root skips the test unless it runs as root.
func Root(t testing.TB, untested string) {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "root", untested)
	}
}

// Program returns the path of a program, and skips the test when it is not on the PATH.
func Program(t testing.TB, name, untested string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Missing(t, "the program "+name, untested)
	}
	return path
}

// NoError skips the test when its requirement is missing, with the error as the reason.
func NoError(t testing.TB, err error, untested string) {
	t.Helper()
	if err != nil {
		Missing(t, "what this machine does not give: "+err.Error(), untested)
	}
}
