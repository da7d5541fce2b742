package controllers

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// The words of --controllers are read as kube-controller-manager reads them.
func TestChoice(t *testing.T) {
	for words, want := range map[string]string{ // of cronjob, job, podgc
		"*":                                   "cronjob job podgc",
		"*,-cronjob":                          "job podgc",
		"*,-cronjob-controller":               "job podgc",
		"-cronjob,*":                          "job podgc",
		"cronjob":                             "cronjob",
		"cronjob-controller,job":              "cronjob job",
		"-job,cronjob":                        "cronjob",
		"*,-job,job":                          "cronjob podgc",
		"-job":                                "",
		"*,-pod-garbage-collector-controller": "cronjob job",
	} {
		s := DefaultSettings()
		s.Controllers = strings.Split(words, ",")
		if err := s.Check(nil); err != nil {
			t.Errorf("%s: %v", words, err)
		}
		var on []string
		for e := range all() {
			if slices.Contains([]string{"cronjob", "job", "podgc"}, e.name) && s.enabled(e) {
				on = append(on, e.name)
			}
		}
		slices.Sort(on)
		if got := strings.Join(on, " "); got != want {
			t.Errorf("%s: %q, want %q", words, got, want)
		}
	}
}

// No two controllers have a name or a flag in common, so that each word means one.
func TestNamesAreUnique(t *testing.T) {
	seen := map[string]string{}
	for e := range all() {
		for _, name := range append([]string{e.name}, e.upstream...) {
			if other, taken := seen[name]; taken {
				t.Errorf("%s and %s are both called %s", e.name, other, name)
			}
			seen[name] = e.name
		}
		if e.syncs == "" {
			continue
		}
		if other, taken := seen[e.syncs]; taken || e.workers < 1 {
			t.Errorf("%s: flag %s is that of %q already, or has no default", e.name, e.syncs, other)
		}
		seen[e.syncs] = e.name
	}
}

func TestWrongSettings(t *testing.T) {
	pods := []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd00::/56")}
	for name, c := range map[string]struct {
		change func(*Settings)
		wrong  string
	}{
		"defaults":        {func(*Settings) {}, ""},
		"smaller blocks":  {func(s *Settings) { s.NodeMaskBits = 26 }, ""},
		"larger than all": {func(s *Settings) { s.NodeMaskBits = 15 }, "--node-cidr-mask-size 15: want from 16 to 30"},
		"no pods":         {func(s *Settings) { s.NodeMaskBits = 31 }, "--node-cidr-mask-size 31"},
		"unknown": {func(s *Settings) { s.Controllers = []string{"*", "-dogs"} },
			`no controller "dogs"; there are serviceaccount-controller`},
		"no workers":   {func(s *Settings) { s.Workers["concurrent-gc-syncs"] = 0 }, "--concurrent-gc-syncs 0"},
		"no tolerance": {func(s *Settings) { s.Autoscaling.Tolerance = 0 }, "--horizontal-pod-autoscaler-tolerance"},
	} {
		s := DefaultSettings()
		c.change(&s)
		err := s.Check(pods)
		if (err == nil) != (c.wrong == "") || (err != nil && !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s: %v, want %q", name, err, c.wrong)
		}
	}
}
