package node

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/apiserver"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/identity"
)

// keyFileOf are the files of the keys of CAs with a purpose of their own.
var keyFileOf = map[pki.Purpose]string{pki.Clients: "ca.key", pki.Peers: "peers-ca.key",
	pki.FrontProxy: "front-proxy-ca.key"}

// leaf is a certificate by the CA for the purpose, with the key in this server's directory.
func (p *process) leaf(t *testing.T, purpose pki.Purpose, name string, groups ...string) tls.Certificate {
	t.Helper()
	record, err := enroll.Load(p.order.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(p.order.DataDir, "pki", keyFileOf[purpose]))
	if err != nil {
		t.Fatal(err)
	}
	bundle := record.CA()
	ca, err := pki.ParseAuthority([]byte(bundle.For(purpose)[0]), key)
	if err != nil {
		t.Fatal(err)
	}
	i, err := identity.New(t.Context(),
		identity.Config{Name: name, Now: time.Now, Logger: quiet(), Issue: pki.TrustOf(ca).Signs(func() pki.Request {
			return pki.Request{CommonName: name, Organization: groups, Names: []string{name},
				Usage: pki.Client | pki.Server}
		}, time.Now)})
	if err != nil {
		t.Fatal(err)
	}
	return *i.Certificate()
}

// onlyOwnDoors tries certificates of each CA at the doors of the others.
func onlyOwnDoors(t *testing.T, all []*process) {
	t.Helper()
	for n, p := range all {
		i := intruder{t, p, n}
		server := []string{join.ServersOrganization}
		for purpose := range keyFileOf {
			peer := i.peer(p.leaf(t, purpose, "s2", server...))
			if alert(peer) == (purpose == pki.Peers) {
				t.Errorf("%s: a server's certificate by the CA for %s at the port of servers: %v", p.order.Name,
					purpose, peer)
			}
			joins := map[pki.Purpose]int{pki.Peers: http.StatusForbidden}[purpose] // its key is not recorded
			if joins == 0 {
				joins = http.StatusUnauthorized
			}
			if status := i.joining(p.leaf(t, purpose, "s2", server...)); status != joins {
				t.Errorf("%s: a server's certificate by the CA for %s gets %d where servers get keys, want %d",
					p.order.Name, purpose, status, joins)
			}
			api := map[pki.Purpose]int{pki.Clients: http.StatusOK}[purpose]
			if api == 0 {
				api = http.StatusUnauthorized
			}
			if status := i.api(p.leaf(t, purpose, "mallory", "system:masters")); status != api {
				t.Errorf("%s: an administrator's certificate by the CA for %s gets %d, want %d", p.order.Name, purpose,
					status, api)
			}
		}
	}
}

// exchanged makes a change that begins an exchange, and waits for its end at all servers.
func exchanged(t *testing.T, all []*process, at *process, change exchange.Change) {
	t.Helper()
	var before exchange.Status
	look := func(ctx context.Context, p *process) (is exchange.Status, err error) {
		config, err := p.config()
		if err != nil {
			return is, err
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return is, err
		}
		text, err := client.Discovery().RESTClient().Get().AbsPath(adminapi.CAPath).Do(ctx).Raw()
		if err == nil {
			err = json.Unmarshal(text, &is)
		}
		return is, err
	}
	before, err := look(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	if err := changeCA(t.Context(), at, change, nil); err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		until(t, patience, fmt.Sprintf("%s has done %s", p.order.Name, change), func(ctx context.Context) error {
			is, err := look(ctx, p)
			if err == nil &&
				(is.UnderWay() || is.Generation <= before.Generation ||
					is.Separate != (change != exchange.BeginJoint)) {
				err = fmt.Errorf("%+v", is)
			}
			return err
		})
	}
}

// TestCAsForEachPurpose: a new cluster has a CA for servers and one for the front proxy, beside
// that for clients. It goes back to one CA, as an earlier version leaves it, and over to three
// again, while clients go on. At each time only the CA of a door opens it.
func TestCAsForEachPurpose(t *testing.T) {
	all := startThree(t, "")
	onlyOwnDoors(t, all)
	first, err := enroll.Load(all[0].order.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	end := loadBy(t, all, first.CA().PEM())
	look := func(separate bool) {
		t.Helper()
		for n, p := range all {
			record, err := enroll.Load(p.order.DataDir)
			if err != nil {
				t.Fatal(err)
			}
			if got := record.CA(); got.Separate() != separate {
				t.Errorf("%s has the CAs %+v", p.order.Name, got)
			}
			var on struct{ Format int }
			data, err := os.ReadFile(record.Path())
			if err := errors.Join(err, json.Unmarshal(data, &on)); err != nil || on.Format > 5 != separate {
				t.Errorf("%s: the format is %d, %v", p.order.Name, on.Format, err)
			}
			for _, purpose := range []pki.Purpose{pki.Peers, pki.FrontProxy} {
				info, err := os.Stat(filepath.Join(p.order.DataDir, "pki", keyFileOf[purpose]))
				if separate && (err != nil || info.Mode().Perm() != 0o600) ||
					!separate && !errors.Is(err, os.ErrNotExist) {
					t.Errorf("%s: the key of the CA for %s: %v, %v", p.order.Name, purpose, info, err)
				}
			}
			client := p.client()
			until(t, patience, "what extension API servers are told at "+p.order.Name, func(ctx context.Context) error {
				told, err := client.CoreV1().ConfigMaps("kube-system").Get(ctx, "extension-apiserver-authentication",
					metav1.GetOptions{})
				bundle := record.CA()
				if err == nil &&
					(told.Data["requestheader-client-ca-file"] != bundle.For(pki.FrontProxy)[0] ||
						told.Data["client-ca-file"] != bundle.For(pki.Clients)[0]) {
					err = errors.New("they are told of others")
				}
				return err
			})
			i, proxy := intruder{t, p, n}, p.leaf(t, pki.Clients, apiserver.ProxyClientName)
			want := http.StatusForbidden
			if !separate { // as in an earlier version, the name decides
				want = http.StatusOK
			}
			if status := i.named(proxy); status != want {
				t.Errorf(
					"%s: the front proxy's name, by the CA for clients, opens the API for whom headers name: %d, want %d", p.order.Name, status, want)
			}
			if separate && i.named(p.leaf(t, pki.FrontProxy, apiserver.ProxyClientName)) != http.StatusOK {
				t.Errorf("%s: the front proxy does not open the API for whom headers name", p.order.Name)
			}
		}
	}
	look(true)
	exchanged(t, all, all[1], exchange.BeginJoint)
	look(false)
	for n, p := range all { // as in an earlier version, the names decide
		if err := (intruder{t, p, n}).peer(p.leaf(t, pki.Clients, "s2", join.ServersOrganization)); alert(err) {
			t.Errorf("with one CA its server's certificate is refused: %v", err)
		}
	}
	exchanged(t, all, all[2], exchange.Begin)
	look(true)
	end()
	onlyOwnDoors(t, all)
}
