package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// events are what Go's test2json makes of the output of a suite with four tests.
const events = `{"Action":"start"}
{"Action":"run","Test":"TestConformance"}
{"Action":"output","Test":"TestConformance","Output":"setting up\n"}
{"Action":"run","Test":"TestConformance/UDPRoute"}
{"Action":"output","Test":"TestConformance/UDPRoute","Output":"    conformance.go:57: Skipping UDPRoute: suite does not support UDPRoute\n"}
{"Action":"skip","Test":"TestConformance/UDPRoute"}
{"Action":"run","Test":"TestConformance/Broken"}
{"Action":"run","Test":"TestConformance/Broken/0_request_to_'/'"}
{"Action":"output","Test":"TestConformance/Broken/0_request_to_'/'","Output":"    http.go:250: \n        \tError Trace:\t/x/http.go:250\n        \tError:      \tReceived unexpected error:\n        \t            \tcontext deadline exceeded\n        \tTest:       \tTestConformance/Broken\n        \tMessages:   \terror making a request\n"}
{"Action":"fail","Test":"TestConformance/Broken/0_request_to_'/'"}
{"Action":"output","Test":"TestConformance/Broken","Output":"    --- FAIL: TestConformance/Broken (1.00s)\n"}
{"Action":"fail","Test":"TestConformance/Broken"}
{"Action":"run","Test":"TestConformance/Fatal"}
{"Action":"fail","Test":"TestConformance/Fatal"}
{"Action":"run","Test":"TestConformance/Accepted"}
{"Action":"pass","Test":"TestConformance/Accepted/part"}
{"Action":"pass","Test":"TestConformance/Accepted"}
{"Action":"fail","Test":"TestConformance"}
`

var someResults = []result{
	{Name: "Accepted", Verdict: passed},
	{Name: "Broken", Verdict: failed,
		Reason: "0 request to '/': Received unexpected error: context deadline exceeded: error making a request"},
	{Name: "Fatal", Verdict: failed, Reason: "no error in its output"},
	{Name: "UDPRoute", Verdict: leftOut, Feature: "UDPRoute"},
}

func TestReadEvents(t *testing.T) {
	var log bytes.Buffer
	results, err := readEvents(strings.NewReader(events), &log, false)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(results, someResults) {
		t.Errorf("got %+v", results)
	}
	if want := "setting up\n    conformance.go:57: Skipping"; !strings.HasPrefix(log.String(), want) {
		t.Errorf("the log has\n%s", log.String())
	}
	if _, err := readEvents(strings.NewReader("panic: no\n"), &log, false); err == nil {
		t.Error("output that is no event was read")
	}
}

func TestReason(t *testing.T) {
	for _, c := range []struct {
		name, output string
		parts        []string
		want         string
	}{
		{"tries",
			"    http.go:1: now: not ready yet: expected 200, got 404 (after 1s)\n    http.go:1: now: not ready yet: expected 200, got 500 (after 2s)\n" +
				"    http.go:2: now: timeout while waiting\n", []string{"one", "two"}, "one: expected 200, got 500"},
		{"a line", "    a.go:1: first\n    b.go:2: last\n--- FAIL: TestConformance/X (0.00s)\n", nil, "last"},
		{"an assertion", "  \tError:  \tnot equal\n  \tTest:  \tX\n  http.go:1: not ready yet: late (after 1s)\n", nil,
			"not equal"},
		{"nothing", "--- FAIL\n", nil, "no error in its output"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := reason(c.output, c.parts); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestLost(t *testing.T) {
	err := refuse(lost([]string{"Accepted", "Broken", "UDPRoute", "Gone"}, someResults), "the page")
	want := `2 tests that the page lists as passed did not pass; mend that, or take them off its list:
  Broken: failed: 0 request to '/': Received unexpected error: context deadline exceeded: error making a request
  UDPRoute: left out, without the feature UDPRoute`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if err := refuse(lost([]string{"Accepted"}, someResults), "the page"); err != nil {
		t.Error(err)
	}
}

// reportText is of the form that the suite writes, in another order than ours.
const reportText = `apiVersion: gateway.networking.k8s.io/v1
gatewayAPIChannel: standard
gatewayAPIVersion: v1.6.3
kind: ConformanceReport
profiles:
- core:
    result: success
    statistics: {Failed: 0, Passed: 11, Skipped: 0}
  name: GATEWAY-TLS
- core:
    failedTests: [HTTPRouteWeight]
    result: failure
    statistics: {Failed: 1, Passed: 36, Skipped: 2}
  extended:
    result: success
    statistics: {Failed: 0, Passed: 50, Skipped: 0}
    supportedFeatures: [HTTPRouteCORS, ListenerSet]
    unsupportedFeatures: [HTTPRouteRetry]
  name: GATEWAY-HTTP
- core:
    result: success
    statistics: {Failed: 0, Passed: 12, Skipped: 0}
  name: GATEWAY-GRPC
`

func writeReport(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), reportFile)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestReadReport(t *testing.T) {
	r, err := readReport(writeReport(t, reportText))
	if err != nil {
		t.Fatal(err)
	}
	want := `| profile | core: passed | failed | skipped | extended: passed | failed | skipped | features: claimed | not |
|---|---|---|---|---|---|---|---|---|
| HTTP | 36 | 1 | 2 | 50 | 0 | 0 | 2 | 1 |
| GRPC | 12 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |
| TLS | 11 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |
`
	if got := table(r); got != want {
		t.Errorf("got\n%s", got)
	}
	if _, err := readReport(writeReport(t, "profiles: [{name: GATEWAY-HTTP}]")); err == nil {
		t.Error("a report without two of the profiles was read")
	}
	if _, err := readReport(filepath.Join(t.TempDir(), reportFile)); err == nil {
		t.Error("a report that is missing was read")
	}
}
