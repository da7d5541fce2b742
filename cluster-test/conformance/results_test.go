package main

import (
	"reflect"
	"regexp"
	"strings"
	"testing"
)

const report = `[{"SuiteSucceeded": false, "SpecReports": [
 {"LeafNodeType": "SynchronizedBeforeSuite", "LeafNodeText": "", "State": "passed"},
 {"ContainerHierarchyTexts": ["[sig-apps] Deployment"], "LeafNodeType": "It", "LeafNodeText": "should roll [Conformance]", "State": "passed",
  "ContainerHierarchyLabels": [["sig-apps"], ["Slow"]], "LeafNodeLabels": ["Conformance"]},
 {"ContainerHierarchyTexts": ["[sig-apps] Deployment", "slow"], "LeafNodeType": "It", "LeafNodeText": "rolls back [Conformance]", "State": "failed",
  "Failure": {"Message": "want 3,\n  got 2", "Location": {"FileName": "k8s.io/kubernetes@v1/test/e2e/apps/deployment.go", "LineNumber": 7}}},
 {"ContainerHierarchyTexts": ["[sig-apps] Deployment"], "LeafNodeType": "It", "LeafNodeText": "is alpha", "State": "skipped"},
 {"ContainerHierarchyTexts": null, "LeafNodeType": "It", "LeafNodeText": "[sig-node] Pods run [Conformance]", "State": "skipped"}
]}]`

func TestReadReport(t *testing.T) {
	got, err := readReport(strings.NewReader(report), spec.conformance)
	if err != nil {
		t.Fatal(err)
	}
	want := []spec{
		{Name: "[sig-apps] Deployment should roll [Conformance]", State: "passed",
			Labels: []string{"sig-apps", "Slow", "Conformance"}},
		{Name: "[sig-apps] Deployment slow rolls back [Conformance]", State: "failed", Message: "want 3,\n  got 2",
			Where: "apps/deployment.go:7"},
		{Name: "[sig-node] Pods run [Conformance]", State: "skipped"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	// The chosen specs by labels are those that have run.
	chosen, err := readReport(strings.NewReader(strings.ReplaceAll(report, "[Conformance]", "[Feature:X]")), spec.ran)
	if err != nil || len(chosen) != 2 || chosen[0].State != "passed" || chosen[1].State != "failed" {
		t.Errorf("%+v, %v", chosen, err)
	}
	for text, want := range map[string]string{
		`[{"SpecReports": [{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "Failure": {"Message": "no nodes"}}]}]`: "the suite did not begin: no nodes",
		`[{"SpecReports": []}]`: "no specs of those",
		`[{"SpecRep`:            "read the suite's report",
	} {
		if _, err := readReport(strings.NewReader(text), spec.conformance); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", text, err)
		}
	}
}

func TestJudge(t *testing.T) {
	lacking, err := parseParts("Job\tjobs.batch\t\\] Job \n")
	if err != nil {
		t.Fatal(err)
	}
	at := "apps/x.go:1"
	first := []spec{
		{Name: "[sig-apps] Job runs [Conformance]", State: "passed"},
		{Name: "[sig-apps] Job waits [Conformance]", State: "skipped"},
		{Name: "[sig-apps] A [Conformance]", State: "passed"},
		{Name: "[sig-apps] B [Conformance]", State: "failed", Message: "under load", Where: at},
		{Name: "[sig-apps] C [Conformance]", State: "failed", Message: "under load", Where: at},
		{Name: "[sig-node] D [Conformance]", State: "timedout", Message: "too slow"},
		{Name: "[sig-node] E [Conformance]", State: "skipped"},
		{Name: "[sig-node] F [Conformance]", State: "skipped", Message: "needs 7 nodes"},
		{Name: "[sig-node] G [Conformance]", State: "pending"},
	}
	again := []spec{
		{Name: "[sig-apps] A [Conformance]", State: "skipped"}, // was not among those to run
		{Name: "[sig-apps] B [Conformance]", State: "passed"},
		{Name: "[sig-apps] C [Conformance]", State: "failed", Message: "alone, too"},
		{Name: "[sig-node] D [Conformance]", State: "skipped"}, // was not reached
	}
	want := []result{
		{Spec: "[sig-apps] A", SIG: "apps", Verdict: passed},
		{Spec: "[sig-apps] B", SIG: "apps", Verdict: passed, Retried: true},
		{Spec: "[sig-apps] C", SIG: "apps", Verdict: failed, Retried: true, Reason: "alone, too"},
		{Spec: "[sig-apps] Job runs", SIG: "apps", Verdict: leftOut, Part: "Job"},
		{Spec: "[sig-apps] Job waits", SIG: "apps", Verdict: leftOut, Part: "Job"},
		{Spec: "[sig-node] D", SIG: "node", Verdict: failed, Reason: "timedout: too slow"},
		{Spec: "[sig-node] E", SIG: "node", Verdict: notReached},
		{Spec: "[sig-node] F", SIG: "node", Verdict: failed, Reason: "skipped: needs 7 nodes"},
		{Spec: "[sig-node] G", SIG: "node", Verdict: notReached},
	}
	got := judge(first, again, lacking)
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("result %d:\ngot  %+v\nwant %+v", i, got, want)
		}
	}
	if names := failures(first, lacking); strings.Join(names,
		",") != "[sig-apps] B [Conformance],[sig-apps] C [Conformance],[sig-node] D [Conformance],[sig-node] F [Conformance]" {
		t.Errorf("to run once more: %q", names)
	}
	sum := rows(got)
	if len(sum) != 3 || sum[0].sig != "apps" || sum[0].counts != [4]int{2, 1, 2, 0} ||
		sum[1].counts != [4]int{0, 2, 0, 2} || sum[2].sig != "all" || sum[2].total() != 9 {
		t.Errorf("rows %+v", sum)
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]string{
		"[sig-api-machinery] AdmissionWebhook [Privileged:ClusterAdmin] should honor timeout [Conformance]":          "[sig-api-machinery] AdmissionWebhook should honor timeout",
		"[sig-node] Pods [FeatureGate:X] run  twice [LinuxOnly] [Conformance] [NodeConformance] [Serial] [Slow]":     "[sig-node] Pods [FeatureGate:X] run twice",
		"[sig-node] [DRA] CRUD Tests resource.k8s.io/v1 ResourceClaim [Conformance]":                                 "[sig-node] [DRA] CRUD Tests resource.k8s.io/v1 ResourceClaim",
		"[sig-node] Sysctls [LinuxOnly] [NodeConformance] should support sysctls [MinimumKubeletVersion:1.21] twice": "[sig-node] Sysctls should support sysctls twice",
	} {
		if got := short(name); got != want {
			t.Errorf("short(%s) is %s", name, got)
		}
	}
	if got := sig("[sig-api-machinery] X"); got != "api-machinery" {
		t.Errorf("the SIG is %q", got)
	}
	if got := sig("without one"); got != "none" {
		t.Errorf("the SIG is %q", got)
	}
}

func TestCause(t *testing.T) {
	for message, want := range map[string]string{
		"": "",
		"wait for pod:\n\n    timed out while waiting\n": "wait for pod: / timed out while waiting",
		"a\nb\nc\nd\ne": "a / b / c / d",
		"expected\n    <*errors.StatusError | 0xc0>: \n    not found\n    &errors.StatusError{\n        Code: 404,\n    }\nto be nil": "expected / <*errors.StatusError | 0xc0>: / not found / to be nil",
		strings.Repeat("é", 400): strings.Repeat("é", 300) + "…",
	} {
		if got := cause(message); got != want {
			t.Errorf("cause(%q) is %q, want %q", message, got, want)
		}
	}
}

func TestExactly(t *testing.T) {
	e := regexp.MustCompile(exactly([]string{"[sig-a] X (1) [Conformance]", "[sig-a] Y. [Conformance]"}))
	const description = "Kubernetes e2e suite " // Ginkgo's words before a name
	for name, want := range map[string]bool{
		description + "[sig-a] X (1) [Conformance]":      true,
		description + "[sig-a] Y! [Conformance]":         false,
		description + "[sig-a] X (1) [Conformance] more": false,

		"[sig-a] X (1) [Conformance]":      true,
		"[sig-a] Y. [Conformance]":         true,
		"[sig-a] Y! [Conformance]":         false,
		"[sig-a] X (1) [Conformance] more": false,
	} {
		if e.MatchString(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

// TestCounter: marks are counted wherever the written text is cut.
func TestCounter(t *testing.T) {
	text := []byte("••\n• [FAILED] [1.2 seconds]\nsome • [FAIL\n• [FAILED]")
	for size := 1; size <= len(text); size++ {
		c := &counter{}
		for rest := text; len(rest) > 0; {
			n := min(size, len(rest))
			if written, err := c.Write(rest[:n]); written != n || err != nil {
				t.Fatal(written, err)
			}
			rest = rest[n:]
		}
		if done, failed := c.done.Load(), c.failed.Load(); done != 5 || failed != 2 {
			t.Errorf("in pieces of %d bytes: %d done, %d failed", size, done, failed)
		}
	}
}
