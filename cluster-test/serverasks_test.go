package clustertest

import (
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/adminapi/auditlog"
	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/backups"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/clusterstatus/cis"
	"github.com/barque/barque/internal/clusterusers"
)

// asAdmin is the line in the log of a server that another one has refused.
const asAdmin = "is asked by the administrator's certificate"

// serversAskEachOther: servers send each other the requests of operators with their own
// certificates. None refuses another one, and none needs the administrator's certificate.
func (b *building) serversAskEachOther(t *testing.T) {
	config, err := clientcmd.BuildConfigFromFlags("", b.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	servers := []string{"s1", "s2", "s3"}
	before := map[string]int{}
	for _, s := range servers {
		before[s] = strings.Count(string(read(t, b.LogFile(s))), asAdmin)
	}
	ask := func(config *rest.Config, method, path string) {
		if code, body := b.call(config, method, path, ""); code != http.StatusOK {
			t.Errorf("%s %s: %d %s", method, path, code, body)
		}
	}
	for _, by := range servers {
		at := rest.CopyConfig(config)
		at.Host = "https://" + net.JoinHostPort(b.at[by], apiPort)
		for _, of := range servers {
			if of == by {
				continue
			}
			query := auditlog.Query{Since: time.Now().Add(-time.Minute), Limit: 10}.Values()
			query.Set(adminapi.RelayParameter, of)
			for _, path := range []string{clusterstatus.DiagnosisPath, auditlog.Path, cis.ReportPath} {
				ask(at, http.MethodGet, path+"?"+query.Encode())
			}
			ask(at, http.MethodGet, adminapi.CertificatesPath+"?of="+of)
			ask(at, http.MethodPost, adminapi.CertificatesPath+"?of="+of)
		}
		ask(at, http.MethodGet, backups.SnapshotsPath+"?all=true")
		ask(at, http.MethodGet, adminapi.EncryptionPath) // a follower asks the leader
	}
	for _, s := range servers {
		if now := strings.Count(string(read(t, b.LogFile(s))), asAdmin); now != before[s] {
			t.Errorf("%s needed the administrator's certificate %d times", s, now-before[s])
		}
	}
	events := func(user string) []remote.AuditEvent {
		var all remote.AuditEvents
		if err := json.Unmarshal([]byte(b.Barque(t, "audit", "--user", user, "--limit", "10000", "-o", "json")),
			&all); err != nil || len(all.Silent) > 0 {
			t.Fatalf("%v, %v", err, all.Silent)
		}
		return all.Events
	}
	asked := map[string]bool{}
	for _, e := range events(clusterusers.ServerClient) {
		path, _, _ := strings.Cut(e.RequestURI, "?")
		if asked[path] = true; e.ResponseStatus == nil || e.ResponseStatus.Code != http.StatusOK {
			t.Errorf("%s has answered another server: %s %s: %+v", e.Server, e.Verb, e.RequestURI, e.ResponseStatus)
		}
	}
	// The policy records these.
	if want := []string{auditlog.Path, adminapi.CertificatesPath,
		clusterstatus.DiagnosisPath}; !slices.Equal(slices.Sorted(maps.Keys(asked)), want) {
		t.Errorf("events of what servers have asked: %v, want %v", slices.Sorted(maps.Keys(asked)), want)
	}
	for _, e := range events("barque:admin") {
		for name, address := range b.at {
			if slices.Contains(e.SourceIPs, address) && strings.HasPrefix(e.RequestURI, "/barque/") {
				t.Errorf("%s asks %s as the administrator: %s %s", name, e.Server, e.Verb, e.RequestURI)
			}
		}
	}
}
