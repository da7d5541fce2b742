package main

import (
	"strings"
	"testing"
)

func TestCheckRefusesWhatIsNoMachine(t *testing.T) {
	for _, args := range [][]string{{"10.0.0.1:6443"}, {"--role", "x", "10.0.0.1"}} {
		cmd := checkCommand()
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
