package audit

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit/policy"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
)

// TestRecord: a request outside of the chain has an event as others have, unless the policy does
// not want it.
func TestRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := newLog(t, NewOptions(), path)
	stop := run(t, l)
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	l.Record(
		Request{User: "system:bootstrap:abc", Groups: []string{"g"}, Method: "POST", Path: "/barque/join/v1/server",
			URI:    "/barque/join/v1/server?a=b",
			Source: "10.0.0.5", UserAgent: "ua", Received: at, Status: 403, Reason: "no",
			Annotations: map[string]string{"join.barque.io/node": "n1"}})
	l.Record(Request{Method: "GET", Path: "/barque/join/v1/ca"})
	stop()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var e auditv1.Event
	if err := json.Unmarshal(data, &e); err != nil { // one event, no more
		t.Fatalf("%v: %s", err, data)
	}
	if e.Kind != "Event" || e.Level != "Metadata" || e.Stage != "ResponseComplete" || e.AuditID == "" ||
		e.Verb != "post" || e.RequestURI != "/barque/join/v1/server?a=b" ||
		e.User.Username != "system:bootstrap:abc" || e.User.Groups[0] != "g" || e.SourceIPs[0] != "10.0.0.5" ||
		e.UserAgent != "ua" ||
		e.ResponseStatus.Code != 403 || e.ResponseStatus.Message != "no" || e.ResponseStatus.Status != "Failure" ||
		e.Annotations["join.barque.io/node"] != "n1" {
		t.Errorf("%s", data)
	}
	if !e.RequestReceivedTimestamp.Time.Equal(at) || e.StageTimestamp.IsZero() {
		t.Errorf("times %s and %s", e.RequestReceivedTimestamp, e.StageTimestamp)
	}
}

// TestActs: no request waits for a sink that hangs, even a blocking one. Acts keep their order,
// those that find the queue full are counted as lost, and a stop sends all that wait.
func TestActs(t *testing.T) {
	for _, mode := range []string{genericoptions.ModeBatch, genericoptions.ModeBlocking,
		genericoptions.ModeBlockingStrict} {
		t.Run(mode, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rules, err := readPolicy("")
				if err != nil {
					t.Fatal(err)
				}
				l, h := &Log{Policy: policy.NewPolicyRuleEvaluator(rules)}, &hanging{goOn: make(chan struct{})}
				l.add(h, 1, newLosses("log", "f", quiet), genericoptions.AuditBatchOptions{Mode: mode,
					BatchConfig: buffered.BatchConfig{BufferSize: waitingActs, MaxBatchSize: 1}},
					genericoptions.AuditTruncateOptions{}, auditv1.SchemeGroupVersion)
				stop := run(t, l)
				act := func(n int) {
					l.RecordAct(
						Request{User: "barque:leader", Method: "POST", Path: "/barque/v1/ca", URI: "/barque/v1/ca",
							Status:      200,
							Annotations: map[string]string{"n": strconv.Itoa(n)}})
				}
				const lost = 7
				var want []string
				for n := range 2 + waitingActs + lost { // one is on its way, and one waits for its turn
					act(n)
					synctest.Wait()
					if n < 2+waitingActs {
						want = append(want, strconv.Itoa(n))
					}
				}
				if got := l.Losses(); len(got) != 1 || got[0].Events != lost || got[0].Reason != errQueueFull.Error() {
					t.Errorf("%+v", got)
				}
				close(h.goOn)
				synctest.Wait()
				for n := range 20 {
					act(-n)
					want = append(want, strconv.Itoa(-n))
				}
				stop()
				var got []string
				for _, batch := range h.batches {
					for _, e := range batch {
						got = append(got, e.Annotations["n"])
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("these are recorded: %q", got)
				}
				act(0)
				if got := l.Losses(); len(got) != 1 || got[0].Events != lost+1 {
					t.Errorf("after the end: %+v", got)
				}
			})
		})
	}
}
