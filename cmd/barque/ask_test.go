package main

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi/remote"
)

func TestServerURL(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.1":                   "https://10.0.0.1:6443",
		"10.0.0.1:7443":              "https://10.0.0.1:7443",
		"https://s1.example.net":     "https://s1.example.net:6443",
		"s1:7443":                    "https://s1:7443",
		"2001:db8::1":                "https://[2001:db8::1]:6443",
		"[2001:db8::1]":              "https://[2001:db8::1]:6443",
		"https://[2001:db8::1]":      "https://[2001:db8::1]:6443",
		"https://[2001:db8::1]:7443": "https://[2001:db8::1]:7443",
		"":                           "",
		"https://":                   "",
		"s1/path":                    "",
		"me@s1":                      "",
		"a:b:c":                      "",
		"[2001:db8::1":               "",
	} {
		if got, err := remote.ServerURL(address); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", address, got, err, want)
		}
	}
}

// TestNobodyAnswersIsNoCircle: where `cluster status` is refused, the advice is not to ask for it.
func TestNobodyAnswersIsNoCircle(t *testing.T) {
	away := &net.OpError{Op: "dial", Err: errors.New("no route")}
	for _, errs := range [][]error{{&remote.RefusalError{Status: http.StatusServiceUnavailable, Reason: "not ready"}}, {&remote.RefusalError{Status: http.StatusInternalServerError, Reason: "broken"}, away, &remote.NoAnswerError{Within: time.Second}}} {
		if err := nobodyAnswers(new(rest.Config), errs, new(heard)); strings.Contains(err.Error(), "cluster status") || !errors.Is(err, errs[0]) {
			t.Error(err)
		}
	}
	if err := nobodyAnswers(new(rest.Config), []error{&remote.RefusalError{Status: http.StatusForbidden, Reason: "you may not"}, away}, new(heard)); !strings.Contains(err.Error(), "ask an administrator") {
		t.Error(err)
	}
}
