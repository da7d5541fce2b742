package audit

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

// TestRecord: a request outside of the chain has an event as others have, unless the policy does
// not want it.
func TestRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := newLog(t, NewOptions(), path)
	stop := run(t, l)
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	l.Record(Request{User: "system:bootstrap:abc", Groups: []string{"g"}, Method: "POST", Path: "/barque/join/v1/server", URI: "/barque/join/v1/server?a=b",
		Source: "10.0.0.5", UserAgent: "ua", Received: at, Status: 403, Reason: "no", Annotations: map[string]string{"join.barque.io/node": "n1"}})
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
	if e.Kind != "Event" || e.Level != "Metadata" || e.Stage != "ResponseComplete" || e.AuditID == "" || e.Verb != "post" || e.RequestURI != "/barque/join/v1/server?a=b" ||
		e.User.Username != "system:bootstrap:abc" || e.User.Groups[0] != "g" || e.SourceIPs[0] != "10.0.0.5" || e.UserAgent != "ua" ||
		e.ResponseStatus.Code != 403 || e.ResponseStatus.Message != "no" || e.ResponseStatus.Status != "Failure" ||
		e.Annotations["join.barque.io/node"] != "n1" {
		t.Errorf("%s", data)
	}
	if !e.RequestReceivedTimestamp.Time.Equal(at) || e.StageTimestamp.IsZero() {
		t.Errorf("times %s and %s", e.RequestReceivedTimestamp, e.StageTimestamp)
	}
}
