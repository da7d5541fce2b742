package credentials

import (
	"testing"
	"time"
)

// What an agent tells of its certificates is read with this server's clock.
func TestToldCertificates(t *testing.T) {
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	told, err := ToldCertificates(
		[]byte(
			`[{"name": "kubelet", "notAfter": "2026-11-20T13:00:00Z", "renewAt": "2026-11-20T11:00:00Z", "secondsLeft": 7, "warning": "mine"}]`), noon)
	if err != nil || len(told) != 1 || told[0].SecondsLeft != 3600 || told[0].Warning != "" ||
		!Overdue(told[0].RenewAt, told[0].NotAfter, noon) {
		t.Errorf("%+v, %v", told, err)
	}
	for _, nonsense := range []string{"", "null!", `{"a": 1}`} {
		if told, err := ToldCertificates([]byte(nonsense), noon); err == nil {
			t.Errorf("%q is %+v", nonsense, told)
		}
	}
}
