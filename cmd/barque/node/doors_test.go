package node

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/adminapi/auditlog"
	"github.com/barque/barque/apiserver/audit"
	"github.com/barque/barque/backups"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/clusterstatus/cis"
	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/cmd/barque/node/pages"
	"github.com/barque/barque/cmd/barque/node/upgrading"
	"github.com/barque/barque/internal/clusterusers"
	"github.com/barque/barque/internal/pagelogin"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/judge"
	"github.com/barque/barque/upgrade/part"
)

// admits reports whether a handler goes on with a request, which is for another server. Behind the
// doors of this test is nothing, so a request that is let in fails, or panics.
func admits(h http.Handler, method, path string, who user.Info) (in bool) {
	r := httptest.NewRequest(method, path+"?"+adminapi.RelayParameter+"=s2", nil)
	w := httptest.NewRecorder()
	defer func() {
		if recover() != nil {
			in = true
		}
	}()
	h.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), who)))
	return w.Code != http.StatusForbidden && w.Code != http.StatusMethodNotAllowed
}

// TestServersGetThroughTheirDoors: the paths of a server let another server in where its role does,
// and nowhere else. Only administrators get through the other doors, whatever a role says.
func TestServersGetThroughTheirDoors(t *testing.T) {
	s := &server{options: &options.Options{Name: "s1"}, logger: slog.New(slog.DiscardHandler), record: &enroll.Record{},
		ids: &credentials.Server{}, backups: &backups.Manager{},
		access:  accessParts{audit: &audit.Log{}, page: pages.New("s1", nil)},
		joining: joiningParts{judge: &judge.Judge{}},
		upgrade: &upgrading.Server{Options: &options.Options{Name: "s1"}, Node: part.NewNode(part.Config{Name: "s1"})}}
	handlers := s.handlers()
	const get, post, del = http.MethodGet, http.MethodPost, http.MethodDelete
	type request struct{ method, path string }
	servers := map[request]bool{
		{get, auditlog.Path}: true, {get, adminapi.CertificatesPath}: true, {post, adminapi.CertificatesPath}: true,
		{get, clusterstatus.DiagnosisPath}: true,
		{get, adminapi.EncryptionPath}:     true, {get, cis.ReportPath}: true, {get, backups.SnapshotsPath}: true,
		{get, part.FilesPath}: true, {get, part.NodePath}: true, {post, part.NodePath}: true,
	}
	// RBAC decides alone about these.
	everybody := map[request]bool{
		{get, clusterstatus.StatusPath}: true, {get, clusterstatus.GossipPath}: true, {get, adminapi.MembersPath}: true,
		{get, adminapi.KeysPath}:     true,
		{get, pagelogin.HistoryPath}: true, {get, pagelogin.SessionPath}: true,
		{del, pagelogin.SessionPath}:     true, // of the caller alone
		{get, adminapi.CertificatesPath}: true, {get, adminapi.CAPath}: true,
	}
	server := &user.DefaultInfo{Name: clusterusers.ServerClient,
		Groups: []string{clusterusers.ServerClients, user.AllAuthenticated}}
	clusterAdmin := &user.DefaultInfo{Name: "ann", Groups: []string{"devs", user.AllAuthenticated}}
	for path, h := range handlers {
		for _, method := range []string{get, post, del} {
			at := request{method, path}
			if got := admits(h, method, path, server); got != (servers[at] || everybody[at]) {
				t.Errorf("%s %s: a server is let in: %t", method, path, got)
			}
			if got := admits(h, method, path, clusterAdmin); got != everybody[at] {
				t.Errorf("%s %s: somebody with all rights of RBAC is let in: %t", method, path, got)
			}
			delete(servers, at)
			delete(everybody, at)
		}
	}
	for at := range servers {
		t.Errorf("%s %s is not served", at.method, at.path)
	}
	for at := range everybody {
		t.Errorf("%s %s is not served", at.method, at.path)
	}
}
