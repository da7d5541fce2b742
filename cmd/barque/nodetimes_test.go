package main

import (
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/cmd/barque/node/options"
)

// Grace periods without a flag are no shorter than the ordinary node's.
func TestGraces(t *testing.T) {
	for line, want := range map[string][3]time.Duration{ // grace, at start, after a good-bye
		"":                                {40 * time.Second, time.Minute, 40 * time.Second},
		"--fast-failure-detection":        {3 * time.Second, time.Minute, 40 * time.Second},
		"--node-monitor-grace-period 10s": {10 * time.Second, time.Minute, 40 * time.Second},
		"--node-monitor-grace-period 2m":  {2 * time.Minute, 2 * time.Minute, 2 * time.Minute},
		"--node-monitor-grace-period 2m --node-startup-grace-period 10s --node-goodbye-grace-period 90s": {
			2 * time.Minute, 10 * time.Second, 90 * time.Second},
		"--node-goodbye-grace-period 5m --fast-failure-detection": {
			3 * time.Second, time.Minute, 5 * time.Minute},
	} {
		c, times := serverCommand(), options.DefaultTimes()
		c.ResetFlags()
		addTimeFlags(c, &times)
		if err := c.ParseFlags(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
		if err := times.Complete(c.Flags().Changed); err != nil {
			t.Errorf("%q: %v", line, err)
		}
		if got := [3]time.Duration{times.MonitorGrace, times.StartupGrace, times.GoodbyeGrace}; got != want {
			t.Errorf("%q: %v, want %v", line, got, want)
		}
	}
	c, times := serverCommand(), options.DefaultTimes()
	c.ResetFlags()
	addTimeFlags(c, &times)
	if err := c.ParseFlags([]string{"--node-goodbye-grace-period=0s"}); err != nil {
		t.Fatal(err)
	}
	if err := times.Complete(c.Flags().Changed); err == nil ||
		!strings.Contains(err.Error(), "--node-goodbye-grace-period") {
		t.Errorf("a grace of nothing: %v", err)
	}
}
