package extra

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/internal/clusterusers"
)

// TestWhoIsServed: RBAC decides nothing at these doors, and servers get through one of them only.
func TestWhoIsServed(t *testing.T) {
	served := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }
	for name, c := range map[string]struct {
		group, method    string
		masters, servers int
	}{
		"system:masters": {user.SystemPrivilegedGroup, http.MethodPost, http.StatusOK, http.StatusOK},
		"barque:admins":  {clusterusers.AdminGroup, http.MethodPost, http.StatusOK, http.StatusOK},
		"a server": {clusterusers.ServerClients, http.MethodPost, http.StatusForbidden,
			http.StatusOK},
		"a server, another method": {clusterusers.ServerClients, http.MethodDelete, http.StatusForbidden,
			http.StatusForbidden},
		"the kubelet client": {"barque:kubelet-clients", http.MethodPost, http.StatusForbidden,
			http.StatusForbidden},
		"somebody with all of RBAC": {"dev", http.MethodPost, http.StatusForbidden, http.StatusForbidden},
		"a master by another method": {user.SystemPrivilegedGroup, http.MethodGet, http.StatusMethodNotAllowed,
			http.StatusMethodNotAllowed},
	} {
		r := httptest.NewRequestWithContext(t.Context(), c.method, "/barque/v1/x", nil)
		r = r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: "n", Groups: []string{c.group}}))
		for door, want := range map[*http.Handler]int{new(MastersOnly(http.MethodPost, served)): c.masters,
			new(MastersAndServers(http.MethodPost, served)): c.servers} {
			w := httptest.NewRecorder()
			if (*door).ServeHTTP(w, r); w.Code != want {
				t.Errorf("%s: %d, want %d: %s", name, w.Code, want, w.Body)
			}
		}
	}
	w := httptest.NewRecorder()
	if MastersAndServers(http.MethodGet, served).ServeHTTP(w,
		httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/x", nil)); w.Code != http.StatusForbidden {
		t.Errorf("nobody: %d", w.Code)
	}
}
