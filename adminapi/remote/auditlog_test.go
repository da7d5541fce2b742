package remote

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/adminapi/auditlog"
)

// TestAudit: the servers' events are merged by time. A server that is away is asked through another
// one. An unreachable server is named, beside the others' events.
func TestAudit(t *testing.T) {
	event := func(n int, id string) json.RawMessage {
		return json.RawMessage(
			fmt.Sprintf(
				`{"kind":"Event","auditID":%q,"verb":"delete","stage":"ResponseComplete","user":{"username":"ann"},"sourceIPs":["10.0.0.9"],
			"objectRef":{"resource":"deployments","apiGroup":"apps","namespace":"ns","name":%q},"responseStatus":{"code":200},"stageTimestamp":"2026-11-29T12:00:%02d.000000Z"}`, id, id, n))
	}
	answers := map[string]auditlog.Answer{
		"s1": {Server: "s1", Events: []json.RawMessage{event(1, "a"), event(4, "d")}},
		"s2": {Server: "s2", Events: []json.RawMessage{event(2, "b"), event(3, "c")},
			Left: "there are more, older ones", Unreadable: 2},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Query().Get(adminapi.RelayParameter)]
		if q, err := auditlog.Parse(r.URL.Query()); err != nil || q.User != "ann" || r.URL.Path != auditlog.Path {
			t.Errorf("%s: %+v, %v", r.URL, q, err)
		}
		if !ok {
			http.Error(w, "cannot ask server s3: no route", http.StatusBadGateway)
			return
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	away := httptest.NewServer(http.NotFoundHandler())
	away.Close()
	servers := []AuditServer{{"s1", []string{server.URL}}, {"s2", []string{away.URL, server.URL}},
		{"s3", []string{away.URL, server.URL}}}
	for limit, want := range map[int]string{100: "a b c d", 2: "c d"} {
		got := Audit(t.Context(), &rest.Config{Host: server.URL}, servers,
			auditlog.Query{Since: time.Unix(0, 0), User: "ann", Limit: limit})
		var ids []string
		for _, e := range got.Events {
			ids = append(ids, string(e.AuditID))
		}
		if strings.Join(ids, " ") != want {
			t.Errorf("%v, want %s", ids, want)
		}
		if err := got.Err(); err == nil || !strings.Contains(err.Error(), "log of server s3") ||
			!strings.Contains(err.Error(), "no route") || strings.Contains(err.Error(), "server s1 is") {
			t.Errorf("the error is %v", err)
		}
		if !strings.Contains(got.Left["s2"], "older") || (got.Left["s1"] == "") != (limit == 100) {
			t.Errorf("left %v", got.Left)
		}
		var text strings.Builder
		if err := got.Write(&text); err != nil ||
			!strings.Contains(text.String(),
				"2026-11-29T12:00:04Z\ts1\tann\tdelete\tdeployments.apps d in ns\t200\t10.0.0.9\n") {
			t.Errorf("%s, %v", &text, err)
		}
		data, err := json.Marshal(got)
		if err != nil || !strings.Contains(string(data), `"server":"s1","kind":"Event"`) {
			t.Errorf("%s, %v", data, err)
		}
	}
}

// TestTheTableShowsTheChange: requests of one path that differ in their query, or in the server's
// annotations, do not look alike.
func TestTheTableShowsTheChange(t *testing.T) {
	event := func(uri, annotations string) json.RawMessage {
		return json.RawMessage(
			fmt.Sprintf(`{"kind":"Event","verb":"post","stage":"ResponseComplete","requestURI":%q,"annotations":{%s}}`,
				uri, annotations))
	}
	var all AuditEvents
	all.Left = map[string]string{}
	all.add(&auditlog.Answer{Server: "s1", Events: []json.RawMessage{
		event("/barque/v1/ca?change=begin", ""), event("/barque/v1/ca?change=undo", ""),
		event("/barque/v1/encryption?change=rewrite&decrypt=configmaps", ""),
		event("/barque/v1/tokens",
			`"token.barque.io/token-id":"abcdef","token.barque.io/role":"server","token.barque.io/uses":"1","token.barque.io/ttl":"1h0m0s"`),
		event("/barque/v1/revocations",
			`"revocation.barque.io/act":"revoke","revocation.barque.io/kind":"certificate","revocation.barque.io/name":"ann","revocation.barque.io/serial":"0abc"`),
	}})
	var text strings.Builder
	if err := all.Write(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\t/barque/v1/ca?change=begin\t", "\t/barque/v1/ca?change=undo\t",
		"\t/barque/v1/encryption?change=rewrite&decrypt=configmaps\t",
		"/barque/v1/tokens token-id=abcdef role=server uses=1 ttl=1h0m0s\t",
		"/barque/v1/revocations act=revoke kind=certificate name=ann serial=0abc\t"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is missing in\n%s", want, text.String())
		}
	}
}
