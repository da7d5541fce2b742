package main

import (
	"strings"
	"testing"

	"github.com/barque/barque/controllers"
)

func TestControllerFlags(t *testing.T) {
	for _, c := range []struct {
		line    string
		wrong   string // part of the error
		changed func(*controllers.Settings) bool
	}{
		{"", "", func(s *controllers.Settings) bool {
			return s.NodeMaskBits == 24 && s.FinishedPods == 12500 && s.Workers["concurrent-gc-syncs"] == 20
		}},
		{"--controllers *,-cronjob --terminated-pod-gc-threshold 10", "", func(s *controllers.Settings) bool {
			return len(s.Controllers) == 2 && s.Controllers[1] == "-cronjob" && s.FinishedPods == 10
		}},
		{"--concurrent-deployment-syncs 9", "",
			func(s *controllers.Settings) bool { return s.Workers["concurrent-deployment-syncs"] == 9 }},
		{"--force-detach-after 0", "", func(s *controllers.Settings) bool { return s.ForceDetachAfter == 0 }},
		{"--force-detach-after -1m", "--force-detach-after -1m0s: want 0 (never) at least", nil},
		{"--horizontal-pod-autoscaler-sync-period 5s", "",
			func(s *controllers.Settings) bool { return s.Autoscaling.SyncPeriod.Seconds() == 5 }},
		{"--controllers *,-cron", `no controller "cron"; there are`, nil},
		{"--concurrent-job-syncs 0", "--concurrent-job-syncs 0: want 1 at least", nil},
		{"--horizontal-pod-autoscaler-sync-period 0s", "--horizontal-pod-autoscaler-sync-period", nil},
	} {
		cmd := serverCommand()
		cmd.ResetFlags()
		var s controllers.Settings
		var workers map[string]*int
		addControllerFlags(cmd, &s, &workers)
		if err := cmd.ParseFlags(strings.Fields(c.line)); err != nil {
			t.Fatal(err)
		}
		err := completeControllers(&s, workers)
		switch {
		case c.wrong != "":
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%q: %v, want %q", c.line, err, c.wrong)
			}
		case err != nil || !c.changed(&s):
			t.Errorf("%q: %v, %+v", c.line, err, s)
		}
	}
}
