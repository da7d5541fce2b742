package batch

import (
	"context"
	"testing"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

const (
	isMet      = "{type: SuccessCriteriaMet, status: 'True'}"
	isComplete = "{type: Complete, status: 'True'}"
	isTarget   = "{type: FailureTarget, status: 'True'}"
	isFailed   = "{type: Failed, status: 'True'}"
	began      = "startTime: '2030-01-01T00:00:00Z', "
	ended      = "completionTime: '2030-01-01T01:00:00Z', "
	complete   = began + ended + "conditions: [" + isMet + ", " + isComplete + "]"
	failed     = began + "conditions: [" + isTarget + ", " + isFailed + "]"
)

func TestJobStatus(t *testing.T) {
	const (
		indexed    = "completionMode: Indexed, completions: 5, backoffLimitPerIndex: 1, " + template
		at         = "status."
		conditions = grouptest.Invalid + "status.conditions"
	)
	for name, c := range map[string]struct {
		spec, old, status string
		want              []string
	}{
		"start": {template, "",
			began +
				"active: 2, ready: 1, terminating: 1, succeeded: 1, failed: 1, uncountedTerminatedPods: {succeeded: [a], failed: [b]}", nil},
		"met":     {template, began, began + "conditions: [" + isMet + "]", nil},
		"success": {template, began + "conditions: [" + isMet + "]", complete, nil},
		"failure": {template, began + "conditions: [" + isTarget + "]", failed, nil},

		"numbers": {template, "", "active: -1, succeeded: -1, failed: -1, ready: -1, terminating: -1",
			[]string{grouptest.Invalid + at + "active", grouptest.Invalid + at + "succeeded",
				grouptest.Invalid + at + "failed", grouptest.Invalid + at + "ready",
				grouptest.Invalid + at + "terminating", grouptest.Invalid + at + "failed",
				grouptest.Invalid + at + "succeeded"}},
		"no active": {template, "", "active: -1", []string{grouptest.Invalid + at + "active"}},
		"fewer": {template, "succeeded: 1, failed: 1", "",
			[]string{grouptest.Invalid + at + "failed", grouptest.Invalid + at + "succeeded"}},
		"shrinks": {"completionMode: Indexed, completions: 2, parallelism: 2, " + template, "succeeded: 3, failed: 1",
			"succeeded: 2, failed: 1", nil},
		"ready": {template, "", "active: 1, ready: 2", []string{grouptest.Invalid + at + "ready"}},
		"uncounted": {template, "", "uncountedTerminatedPods: {succeeded: [a, '', a], failed: [a, b]}",
			[]string{grouptest.Invalid + at + "uncountedTerminatedPods.succeeded[1]",
				grouptest.Duplicate + at + "uncountedTerminatedPods.succeeded[2]",
				grouptest.Duplicate + at + "uncountedTerminatedPods.failed[0]"}},

		"complete and failed": {template, began,
			began + ended + "conditions: [" + isComplete + ", " + isFailed + ", " + isMet + ", " + isTarget + "]",
			[]string{conditions, conditions, conditions, conditions}},
		"failed at once": {template, began, began + "conditions: [" + isFailed + "]", []string{conditions}},
		"complete at once": {template, began, began + ended + "conditions: [" + isComplete + "]",
			[]string{conditions}},
		"complete without policy": {
			"completionMode: Indexed, completions: 1, successPolicy: {rules: [{succeededCount: 1}]}, " + template,
			began, began + ended + "conditions: [" + isComplete + "]", []string{conditions, conditions}},
		"met and target": {template, began, began + "conditions: [" + isMet + ", " + isTarget + "]",
			[]string{conditions}},
		"complete no more": {template, complete, began + "conditions: [" + isMet + "]", []string{conditions}},
		"failed no more":   {template, failed, began + "conditions: [" + isTarget + "]", []string{conditions}},
		"target no more":   {template, began + "conditions: [" + isTarget + "]", began, []string{conditions}},
		"met no more":      {template, began + "conditions: [" + isMet + "]", began, []string{conditions}},
		"met after complete": {template, began + ended + "conditions: [" + isComplete + "]", complete,
			[]string{conditions}},
		"old complete without met": {template, began + ended + "conditions: [" + isComplete + "]",
			began + ended + "active: 0, conditions: [" + isComplete + "], uncountedTerminatedPods: {}", nil},

		"finished, active": {template, began, complete + ", active: 1",
			[]string{grouptest.Invalid + at + "active"}},
		"finished, terminating": {template, began, failed + ", terminating: 1",
			[]string{grouptest.Invalid + at + "terminating"}},
		"finished, uncounted": {template, began, failed + ", uncountedTerminatedPods: {failed: [a]}",
			[]string{grouptest.Invalid + at + "uncountedTerminatedPods"}},
		"finished, not started": {template, "", "conditions: [" + isTarget + ", " + isFailed + "]",
			[]string{grouptest.Missing + at + "startTime"}},
		"nothing to do": {"suspend: true, completions: 0, " + template, "",
			ended + "conditions: [" + isMet + ", " + isComplete + "]", nil},
		"finished, active as ever": {template, failed + ", active: 1", failed + ", active: 1, failed: 1", nil},
		"complete, no time": {template, began, began + "conditions: [" + isMet + ", " + isComplete + "]",
			[]string{grouptest.Missing + at + "completionTime"}},
		"time, not complete": {template, began, began + "completionTime: '2030-01-01T01:00:00Z'",
			[]string{grouptest.Invalid + at + "completionTime"}},
		"complete before the start": {template, began,
			began + "completionTime: '2029-01-01T01:00:00Z', conditions: [" + isMet + ", " + isComplete + "]",
			[]string{grouptest.Invalid + at + "completionTime"}},
		"complete at another time": {template, complete,
			began + "completionTime: '2030-01-01T02:00:00Z', conditions: [" + isMet + ", " + isComplete + "]",
			[]string{grouptest.Invalid + at + "completionTime"}},
		"started at another time": {template, began, "startTime: '2030-01-01T02:00:00Z'",
			[]string{grouptest.Invalid + at + "startTime"}},
		"suspended": {"suspend: true, " + template, began,
			"conditions: [{type: Suspended, status: 'True'}]", nil},
		"resumed": {template, began + "conditions: [{type: Suspended, status: 'True'}]",
			"startTime: '2030-01-01T02:00:00Z', conditions: [{type: Suspended, status: 'False'}]", nil},

		"indexes": {indexed, "", "completedIndexes: '0,2-3', failedIndexes: '1,4'", nil},
		"bad completed": {indexed, "", "completedIndexes: '3,2'",
			[]string{grouptest.Invalid + at + "completedIndexes"}},
		"bad failed": {indexed, "", "failedIndexes: '5'", []string{grouptest.Invalid + at + "failedIndexes"}},
		"completed and failed": {indexed, "failedIndexes: '1'", "completedIndexes: '0-2', failedIndexes: '1'",
			[]string{grouptest.Invalid + at + "failedIndexes"}},
		"not indexed": {template, "", "completedIndexes: '0', failedIndexes: ''",
			[]string{grouptest.Invalid + at + "completedIndexes", grouptest.Invalid + at + "failedIndexes"}},
		"beyond, as ever": {indexed, "completedIndexes: '7'", "completedIndexes: '7', active: 1", nil},
	} {
		t.Run(name, func(t *testing.T) {
			old := job(t, c.spec)
			j := old.DeepCopy()
			old.Status = grouptest.Parse[batchv1.Job](t, "status: {"+c.old+"}").Status
			j.Status = grouptest.Parse[batchv1.Job](t, "status: {"+c.status+"}").Status
			grouptest.WantErrors(t, validateJobStatus(context.Background(), j, old), c.want...)
		})
	}
}

func TestIndexes(t *testing.T) {
	for text, want := range map[string]string{
		"":        "",
		"0":       "",
		"1,3-5,7": "",
		"1-2-3":   `the fragment "1-2-3" violates the requirement that an index interval can have at most two parts separated by '-'`,
		"x":       `cannot convert string to integer for index: "x"`,
		"1-x":     `cannot convert string to integer for index: "x"`,
		"10":      `too large index: "10"`,
		"1-10":    `too large index: "10"`,
		"2-2":     "non-increasing order, previous: 2, current: 2",
		"1-3,3":   "non-increasing order, previous: 3, current: 3",
	} {
		got := ""
		if _, err := parseIndexes(text, 10); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: error %q, want %q", text, got, want)
		}
	}
	all, err := parseIndexes("1,3-5,7", 10)
	if n := countIndexes(all); err != nil || n != 5 {
		t.Errorf("%d indexes, %v", n, err)
	}
	for _, c := range []struct {
		a, b string
		want int32
	}{{"0-2,5", "3-4,6", -1}, {"0-2,5", "3-5", 5}, {"4", "0-9", 4}, {"x,3", "1,y,2-3", 3}, {"", "1", -1}} {
		got, both := overlap(c.a, c.b, 10)
		if !both {
			got = -1
		}
		if got != c.want {
			t.Errorf("overlap of %q and %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
