package apiserver

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// Clients that request the protobuf form of metrics get native histograms beside the classic ones.
func TestNativeHistograms(t *testing.T) {
	c := startCluster(t)
	const form = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
	code, body := c.raw(t, "/metrics", http.Header{"Accept": {form}})
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	decoder := expfmt.NewDecoder(bytes.NewReader(body), expfmt.NewFormat(expfmt.TypeProtoDelim))
	for {
		var family dto.MetricFamily
		if err := decoder.Decode(&family); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if family.GetName() != "apiserver_request_duration_seconds" {
			continue
		}
		for _, m := range family.Metric {
			if h := m.GetHistogram(); h.GetSchema() != 0 && len(h.GetPositiveSpan()) > 0 && len(h.GetBucket()) > 0 {
				return
			}
		}
	}
	t.Error("apiserver_request_duration_seconds is no native and classic histogram")
}
