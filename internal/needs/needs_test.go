package needs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Only a test with a missing requirement writes to the file, and names the requirement.
func TestMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "not-tested")
	t.Setenv(fileVariable, path)
	skipped := 0
	for name, body := range map[string]func(t *testing.T){
		"a program": func(t *testing.T) { Program(t, "no-such-program", "work with it") },
		"an error":  func(t *testing.T) { NoError(t, errors.New("no disks"), "work on disks") },
		"nothing":   func(t *testing.T) { NoError(t, nil, "work without anything") },
		"go":        func(t *testing.T) { Program(t, "go", "work with go") },
		"a part":    func(t *testing.T) { LeftOut(t, []error{errors.New("a fault: no disks")}) },
		"no part":   func(t *testing.T) { LeftOut(t, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if t.Skipped() {
					skipped++
				}
			}()
			body(t)
		})
	}
	if skipped != 2 {
		t.Errorf("%d tests were skipped, want 2", skipped)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	told := string(data)
	for _, want := range []string{
		"NOT TESTED: work with it (TestMissing/a_program): it takes the program no-such-program\n",
		"NOT TESTED: work on disks (TestMissing/an_error): it takes what this machine does not give: no disks\n",
		"NOT TESTED: a part of TestMissing/a_part: a fault: no disks\n",
	} {
		if !strings.Contains(told, want) {
			t.Errorf("told:\n%swant\n%s", told, want)
		}
	}
	if strings.Count(told, "\n") != 3 {
		t.Errorf("told:\n%s", told)
	}
}
