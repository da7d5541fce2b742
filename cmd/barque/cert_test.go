package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/cmd/barque/operators"
	"github.com/barque/barque/devcluster"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/companytest"
)

// certServer answers like one of three servers, with a test's replacements.
type certServer struct {
	renew func(w http.ResponseWriter, of string)
	// looks are the states of the exchange, one for each request; the last one stays.
	looks  []exchange.Status
	change func(w http.ResponseWriter)
	looked atomic.Int32
	// locksOut refuses an exchange that makes the caller's certificate void.
	locksOut bool
}

func (s *certServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := func(v any) {
		if err := json.NewEncoder(w).Encode(v); err != nil {
			panic(err)
		}
	}
	switch of := r.URL.Query().Get("of"); {
	case r.URL.Path == adminapi.CAPath && r.Method == http.MethodPost:
		if s.locksOut && !r.URL.Query().Has(adminapi.LoseAccess) {
			http.Error(w, "give --lose-access", http.StatusConflict)
			return
		}
		if s.change != nil {
			s.change(w)
			return
		}
		body(exchange.Status{Generation: 2, Step: pki.Spreading, Issuer: "old"})
	case r.URL.Path == adminapi.CAPath:
		n := int(s.looked.Add(1))
		if n > len(s.looks) {
			n = len(s.looks)
		}
		if s.looks[n-1].Generation == 401 {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		body(s.looks[n-1])
	case r.Method == http.MethodPost && s.renew != nil:
		s.renew(w, of)
	case r.Method == http.MethodPost:
		body(credentials.NodeCertificates{Node: of})
	default:
		body(
			adminapi.ClusterCertificates{
				Nodes: []credentials.NodeCertificates{{Node: "s1", Role: "server"}, {Node: "s2", Role: "server"},
					{Node: "a1", Role: "agent"}}})
	}
}

// TestCertRotateTellsItsEnd: the exit code shows success, refusal, or an unknown outcome.
func TestCertRotateTellsItsEnd(t *testing.T) {
	settled, spreading, issuing := exchange.Status{Generation: 1, Issuer: "old"},
		exchange.Status{Generation: 2, Step: pki.Spreading, Issuer: "old"},
		exchange.Status{Generation: 3, Step: pki.Issuing, Issuer: "new"}
	void := exchange.Status{Generation: 401}
	says := func(status int) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { http.Error(w, "because", status) }
	}
	cut := func(http.ResponseWriter) { panic(http.ErrAbortHandler) }
	only := func(name string, f func(http.ResponseWriter)) func(http.ResponseWriter, string) {
		return func(w http.ResponseWriter, of string) {
			if of == name {
				f(w)
				return
			}
			fmt.Fprintf(w, `{"node": %q}`, of)
		}
	}
	for name, c := range map[string]struct {
		server *certServer
		args   string
		code   int
		says   string // on either stream
	}{
		"all":      {&certServer{}, "", 0, "s2 has new certificates"},
		"one":      {&certServer{}, "--server s2", 0, "s2 has new certificates"},
		"no such":  {&certServer{}, "--server s9", 2, "no server"},
		"an agent": {&certServer{}, "--server a1", 2, "is an agent"},
		"one fails": {&certServer{renew: only("s1", says(503))}, "", 1,
			"of s1 were not renewed"},
		"no answer from behind one": {&certServer{renew: only("s2", says(504))}, "", exitcode.Unfinished,
			"not all servers have confirmed"},
		"no answer of one": {&certServer{renew: only("s2", cut)}, "", exitcode.Unfinished, "cert show"},
		"begin": {
			&certServer{looks: []exchange.Status{settled, issuing, {Generation: 4, Issuer: "new"}}}, "--ca --yes", 0,
			"the CA is exchanged"},
		"begin, with a server that is off": {
			&certServer{renew: only("s1", says(503)),
				looks: []exchange.Status{settled, issuing, {Generation: 4, Issuer: "new"}}}, "--ca --yes", 0,
			"s1 goes into the exchange with the key that it has"},
		"begin, with a server that keeps its key": {
			&certServer{
				renew: only("s1",
					func(w http.ResponseWriter) { fmt.Fprint(w, `{"node": "s1", "keptKey": "no quorum"}`) }),
				looks: []exchange.Status{settled, issuing, {Generation: 4, Issuer: "new"}}}, "--ca --yes", 0,
			"s1 goes into the exchange with the key that it has: no quorum"},
		"one keeps its key": {
			&certServer{
				renew: only("s1",
					func(w http.ResponseWriter) { fmt.Fprint(w, `{"node": "s1", "keptKey": "no quorum"}`) })}, "", 0,
			"s1 keeps its key for other servers: no quorum"},
		"begin, with a server without a record": {
			&certServer{
				looks: []exchange.Status{{Generation: 1, Issuer: "old", Unrecorded: []string{"s7"}}, issuing,
					{Generation: 4, Issuer: "new"}}}, "--ca --yes", 0,
			"passes for a server among servers: these servers have recorded no key that the others could know them by: s7"},
		"undo, with a server that is off": {
			&certServer{renew: only("s1", says(503)), looks: []exchange.Status{spreading}}, "--ca --undo --yes", 0,
			"was given up"},
		"begin, missing a step": {
			&certServer{looks: []exchange.Status{settled, {Generation: 4, Issuer: "new"}}}, "--ca --yes", 0,
			"the CA is exchanged"},
		"given up meanwhile": {
			&certServer{looks: []exchange.Status{settled, spreading, {Generation: 3, Issuer: "old"}}}, "--ca --yes", 1,
			"given up meanwhile"},
		"the kubeconfig is void": {&certServer{looks: []exchange.Status{settled, issuing, void}},
			"--ca --yes", 0, "void now"},
		"it is void and nobody knows": {&certServer{looks: []exchange.Status{settled, spreading, void}},
			"--ca --yes", exitcode.Unfinished, "not accepted any more"},
		"do not wait": {&certServer{looks: []exchange.Status{settled}},
			"--ca --yes --wait=false", 0, "under way"},
		"the caller is locked out": {&certServer{looks: []exchange.Status{settled}, change: says(409)},
			"--ca --yes", exitcode.Refused, "because"},
		"and wants that": {
			&certServer{looks: []exchange.Status{settled, issuing, void}, locksOut: true}, "--ca --yes --lose-access",
			0, "void now"},
		"and did not say so": {&certServer{looks: []exchange.Status{settled}, locksOut: true},
			"--ca --yes", exitcode.Refused, "--lose-access"},
		"to lose access by an undo": {&certServer{}, "--ca --undo --lose-access", 2,
			"belongs to the beginning"},
		"nobody said yes": {&certServer{looks: []exchange.Status{settled}}, "--ca",
			exitcode.Refused, "--yes"},
		"nothing to undo": {&certServer{looks: []exchange.Status{settled}}, "--ca --undo",
			exitcode.Refused, "no exchange of the CA is under way"},
		"nothing to force": {&certServer{looks: []exchange.Status{settled}},
			"--ca --force --yes", exitcode.Refused, "no exchange of the CA is under way"},
		"too late to undo": {&certServer{looks: []exchange.Status{issuing}, change: says(409)},
			"--ca --undo --yes", exitcode.Refused, "because"},
		"no quorum": {&certServer{looks: []exchange.Status{settled}, change: says(503)},
			"--ca --yes", 1, "because"},
		"the outcome is unknown": {&certServer{looks: []exchange.Status{settled}, change: says(504)},
			"--ca --yes", exitcode.Unfinished, "not known"},
		"the answer is lost": {&certServer{looks: []exchange.Status{settled}, change: cut},
			"--ca --yes", exitcode.Unfinished, "not known"},
		"undo and force":    {&certServer{}, "--ca --undo --force", 2, "contradict"},
		"undo without --ca": {&certServer{}, "--undo", 2, "give --ca"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // some wait a second for the next request
			cmd := operators.CertCommand()
			var out strings.Builder
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			cmd.SetIn(strings.NewReader(""))
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetArgs(
				slices.Concat([]string{"rotate", "--kubeconfig", kubeconfigOf(t, c.server.ServeHTTP)},
					strings.Fields(c.args)))
			err := cmd.ExecuteContext(t.Context())
			if err != nil {
				out.WriteString(err.Error())
			}
			if strings.Contains(c.args, "--undo") && strings.Contains(out.String(), "goes into") {
				t.Errorf("it renews certificates: %s", &out)
			}
			if got := exitCode(err); got != c.code || !strings.Contains(out.String(), c.says) {
				t.Errorf("exit code %d, want %d with %q; it says\n%s", got, c.code, c.says, &out)
			}
		})
	}
}

// TestTheFlagsNameTheNextCA: each choice of the next CA arrives at the server as its own change,
// with the CA if one is brought. Only a joint one is silent about earlier versions.
func TestTheFlagsNameTheNextCA(t *testing.T) {
	ca := companytest.NewRoot(t).Intermediate("Cluster CA", nil)
	chain, key := ca.Files()
	files := " --ca-file " + chain + " --ca-key-file " + key
	for args, want := range map[string]exchange.Change{
		"": exchange.Begin, " --built-in": exchange.BeginBuiltIn, " --joint": exchange.BeginJoint,
		" --joint --built-in": exchange.BeginJoint,
		files:                 exchange.BeginExternal, files + " --joint": exchange.BeginExternalJoint,
	} {
		var asked exchange.Request
		server := func(w http.ResponseWriter, r *http.Request) {
			is := exchange.Status{Generation: 1, Issuer: "old"}
			if r.Method == http.MethodPost {
				asked.Change = exchange.Change(r.URL.Query().Get("change"))
				if err := json.NewDecoder(r.Body).Decode(&asked.Given); err != nil && !errors.Is(err, io.EOF) {
					t.Errorf("%q: %v", args, err)
				}
				is = exchange.Status{Generation: 2, Step: pki.Spreading, Issuer: "old", Separate: true}
			}
			if err := json.NewEncoder(w).Encode(is); err != nil {
				panic(err)
			}
		}
		cmd := operators.CertCommand()
		var out strings.Builder
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(
			append([]string{"rotate", "--kubeconfig", kubeconfigOf(t, server), "--ca", "--yes", "--wait=false"},
				strings.Fields(args)...))
		if err := cmd.ExecuteContext(t.Context()); err != nil || asked.Change != want ||
			(string(asked.Given.Key) == string(ca.KeyPEM())) != want.BringsCA() {
			t.Errorf("%q: %v; the server was asked for %q, with a key of %d bytes", args, err, asked.Change,
				len(asked.Given.Key))
		}
		joint := want == exchange.BeginJoint || want == exchange.BeginExternalJoint
		if strings.Contains(out.String(), "refuse the data directories of servers from now on") == joint {
			t.Errorf("%q: it says\n%s", args, &out)
		}
	}
}

// TestNoUserIsAddedWhoIsVoid: in the first step of an exchange of the CA, the CA before issues
// certificates that do not count. In the next step the command asks for one.
func TestNoUserIsAddedWhoIsVoid(t *testing.T) {
	for _, c := range []struct {
		is      exchange.Status
		refused bool
	}{
		{exchange.Status{Step: pki.Spreading}, true}, {exchange.Status{Step: pki.Issuing}, false},
		{exchange.Status{}, false},
		{exchange.Status{Step: pki.Spreading, Accounts: true}, false}, // the CA stays
	} {
		cmd := operators.UserCommand()
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		server := &certServer{looks: []exchange.Status{c.is}}
		cmd.SetArgs(
			[]string{"add", "ann", "--server", "https://10.0.0.1:6443", "--kubeconfig",
				kubeconfigOf(t, server.ServeHTTP)})
		err := cmd.ExecuteContext(t.Context())
		if got := exitCode(err) == exitcode.Refused &&
			strings.Contains(err.Error(), "Try again in the next step"); got != c.refused {
			t.Errorf("%+v: %v", c.is, err)
		}
	}
}

// TestExchangeRenewsTheKubeconfigOfADevCluster: it is a copy of a server's, which the exchange
// makes void.
func TestExchangeRenewsTheKubeconfigOfADevCluster(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
	t.Chdir(t.TempDir())
	dir, err := filepath.Abs(devcluster.DefaultDir)
	if err != nil {
		t.Fatal(err)
	}
	looks := []exchange.Status{{Generation: 1, Issuer: "old"}, {Generation: 3, Step: pki.Issuing, Issuer: "new"},
		{Generation: 401}, {Generation: 4, Issuer: "new"}}
	server := httptest.NewTLSServer(&certServer{looks: looks})
	defer server.Close()
	port := netip.MustParseAddrPort(server.Listener.Addr().String()).Port()
	plan, err := json.Marshal(
		devcluster.Plan{Name: "x", Dir: dir, APIPort: port, Complete: true,
			Nodes: []devcluster.Node{{Name: "s1", Role: devcluster.Server}, {Name: "s2", Role: devcluster.Server}}})
	if err != nil {
		t.Fatal(err)
	}
	identity := func(address, token string) []byte {
		return fmt.Appendf(nil,
			"apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: c, cluster: {server: '%s', insecure-skip-tls-verify: true}}]\n"+
				"users: [{name: u, user: {token: %s}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n",
			address,
			token)
	}
	for path, content := range map[string][]byte{
		"dev.json": plan, "kubeconfig": identity(server.URL, "old"), // s1 is dead, and has the old one
		"s1/admin.kubeconfig": identity("https://10.0.0.1:6443", "old"),
		"s2/admin.kubeconfig": identity("https://10.0.0.2:6443", "fresh"),
	} {
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, filepath.Dir(path)), 0o755),
			os.WriteFile(filepath.Join(dir, path), content, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "s1", "admin.kubeconfig"), long, long); err != nil {
		t.Fatal(err)
	}
	out, err := run(t, "cert", "rotate", "--ca", "--yes")
	if err != nil || !strings.Contains(out, ".barque/kubeconfig is renewed, copies of it are not") {
		t.Errorf("%v: %s", err, out)
	}
	now, err := os.ReadFile(filepath.Join(dir, "kubeconfig"))
	if err != nil || !strings.Contains(string(now), "token: fresh") || !strings.Contains(string(now), server.URL) {
		t.Errorf("%v: %s", err, now)
	}
}
