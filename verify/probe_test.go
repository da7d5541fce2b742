package verify

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// oneObject is a server with one object that can be away.
type oneObject struct {
	away     bool
	revision int
	object   []byte
}

func (s *oneObject) RoundTrip(r *http.Request) (*http.Response, error) {
	if s.away {
		return nil, syscall.ECONNREFUSED
	}
	if r.Method == http.MethodPost || r.Method == http.MethodPut {
		m := new(corev1.ConfigMap)
		if err := json.NewDecoder(r.Body).Decode(m); err != nil {
			return nil, err
		}
		s.revision++
		m.ResourceVersion = fmt.Sprint(s.revision)
		s.object, _ = json.Marshal(m)
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(s.object)), Request: r}, nil
}

// TestProbeOutageAtTheEnd: an outage that lasts until the probe ends counts in full.
func TestProbeOutageAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := new(oneObject)
		server, err := NewServer("s1", "http://s1", &rest.Config{Transport: store})
		if err != nil {
			t.Fatal(err)
		}
		p := NewProbe([]Server{server}, "n", "probe")
		acked := 0
		p.Observe = func(_ string, _, _ time.Time, ok bool) {
			if ok {
				acked++
			}
			store.away = acked >= 10
		}
		p.Start(t.Context())
		time.Sleep(8 * time.Second) // of virtual time
		synctest.Wait()
		p.stop()
		p.running.Wait()
		store.away = false
		r, err := p.Stop(t.Context(), time.Minute)
		if err != nil || len(r.Violations) > 0 || r.Acknowledged != 10 || r.Longest < 7*time.Second ||
			r.Longest > 8*time.Second {
			t.Errorf("%+v, %v; want 10 writes, and nearly 8 seconds without one", r, err)
		}
		store.away = true
		p = NewProbe([]Server{server}, "n", "probe")
		p.Start(t.Context())
		time.Sleep(time.Second)
		if r, err := p.Stop(t.Context(), time.Second); err == nil || r.Longest < time.Second {
			t.Errorf("%+v, %v; want an error, and what was found before", r, err)
		}
	})
}
