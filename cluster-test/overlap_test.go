package clustertest

import (
	"context"
	"crypto"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/peer"
)

// TestAThiefOfTheOldCA has the CAs' keys while the CA is exchanged. The old CA is believed for as
// long as a node is off, and the thief signs for whomever it likes. It gets nothing that is good
// after the exchange, and the operators go on. So do the servers: one that was off comes back, and
// all can be restarted.
func TestAThiefOfTheOldCA(t *testing.T) {
	needs.AllTests(t)
	c := Start(t, Options{Servers: 3, Agents: 1})
	b := newBuilding(t, c)
	masters := b.issue(
		pki.Request{CommonName: "barque:admin", Organization: []string{"system:masters"}, Usage: pki.Client})
	proxy := b.issueFor(pki.FrontProxy, pki.Request{CommonName: "barque:front-proxy", Usage: pki.Client})
	b.proxies = map[*tls.Certificate]bool{proxy: true}
	controllers := b.issue(pki.Request{CommonName: "system:kube-controller-manager", Usage: pki.Client})
	agent := b.issue(
		pki.Request{CommonName: "system:node:a1", Organization: []string{"system:nodes"}, Usage: pki.Client})
	servers := []string{join.ServersOrganization}
	server := b.issueFor(pki.Peers,
		pki.Request{CommonName: "s1", Organization: servers, Usage: pki.Client | pki.Server, Holder: b.idOf("s1")})
	nobody := b.issueFor(pki.Peers,
		pki.Request{CommonName: "s1", Organization: servers,
			Usage: pki.Client | pki.Server}) // as of an earlier version
	if answer, err := doors["API: Secrets"](b, masters); answer != yes || err != nil {
		t.Fatalf("before the exchange the forged certificate is good: %s, %v", answer, err)
	}
	for _, door := range []string{"Raft", "store"} {
		if answer, err := doors[door](b, server); answer != yes || err != nil {
			t.Fatalf("%s, before the exchange: the forged certificate is good: %s, %v", door, answer, err)
		}
	}
	open, _, err := b.peer(server, "barque-raft/3")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	watch := b.watch(masters)
	b.Dev(t, "stop", "a1") // the exchange waits for it
	b.Dev(t, "stop", "s2")
	b.Barque(t, "cert", "rotate", "--ca", "--yes", "--wait=false")
	underWay := func(servers ...string) {
		t.Helper()
		Eventually(t, deadline, "the exchange is under way, at the servers that run", func(ctx context.Context) error {
			for _, s := range servers {
				pem := string(read(t, b.DataDir(s)+"/pki/ca.crt"))
				if strings.Count(pem, "BEGIN CERTIFICATE") != 2 {
					return fmt.Errorf("%s believes one CA", s)
				}
			}
			return nil
		})
	}
	underWay("s1", "s3")
	for what, cert := range map[string]*tls.Certificate{"an administrator": masters, "the front proxy": proxy,
		"a controller": controllers, "an agent": agent, "a server": server} {
		for _, door := range []string{"API: Secrets", "API: Nodes"} {
			if answer, err := doors[door](b, cert); answer != unknown || err != nil {
				t.Errorf("%s, forged as %s: %s, %v", door, what, answer, err)
			}
		}
		for _, door := range []string{"keys of gossip", "the CA's key"} {
			want := unknown // it is of no CA for this door
			if cert == server || cert == agent && door == "keys of gossip" {
				want = no
			}
			if answer, err := doors[door](b, cert); answer != want || err != nil {
				t.Errorf("%s, forged as %s: %s, %v", door, what, answer, err)
			}
		}
	}
	if !watch.ended(t) {
		t.Error("its watch goes on")
	}
	if err := open.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, open); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("its connection to the servers' own port stays open")
	}
	b.expelled(t, "in the exchange", map[string]*tls.Certificate{"a server": server, "a server without an ID": nobody},
		no, "s1", "s3")
	if err := b.renewAs(agent, b.at["a1"]); !refusedWith(err, http.StatusForbidden,
		"a key that the cluster has not recorded") {
		t.Errorf("renewed as an agent: %v", err)
	}
	// The holder of a certificate from the cluster goes on: by any of the servers' kubeconfigs.
	for _, who := range []*tls.Certificate{b.admin(), b.agentsOwn("a1")} {
		if answer, err := doors["API: Nodes"](b, who); answer != yes || err != nil {
			t.Errorf("%s: %s, %v", who.Leaf.Subject, answer, err)
		}
	}
	// The server that was off comes back by the key that it has recorded.
	b.Dev(t, "start", "s2")
	underWay("s2")
	Eventually(t, deadline, "all servers are in step", c.InStep)
	for _, s := range []string{"s1", "s2", "s3"} {
		b.Dev(t, "kill", s)
	}
	for _, s := range []string{"s3", "s2", "s1"} {
		b.Dev(t, "start", s)
	}
	Eventually(t, deadline, "all servers are in step after a restart of all", c.InStep)
	Eventually(t, deadline, "the kubelets of all servers", func(context.Context) error {
		for _, server := range []string{"s1", "s2", "s3"} {
			if answer, err := b.get(b.at[server]+":10250", "/pods", b.admin()); answer != yes || err != nil {
				return fmt.Errorf("%s: %s, %v", server, answer, err)
			}
		}
		return nil
	})
	Eventually(t, deadline, "all servers judge again, whose restart may have taken long", func(context.Context) error {
		for _, s := range []string{"s1", "s2", "s3"} {
			at := *b
			at.at = maps.Clone(b.at)
			at.at["s1"] = b.at[s]
			if answer, err := doors["Raft"](&at, server); answer != no || err != nil {
				return fmt.Errorf("%s: %s, %v", s, answer, err)
			}
		}
		return nil
	})
	b.expelled(t, "after a restart of all",
		map[string]*tls.Certificate{"a server": server, "a server without an ID": nobody}, no, "s1", "s2", "s3")
	b.Dev(t, "start", "a1")
	if r := b.BarqueResult(t.Context(), "cert", "rotate", "--ca", "--yes"); r.Error != nil {
		t.Errorf("the exchange: %s%s", r.Out, r.Err)
	}
	c.useServersKubeconfig(t)
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	newCA, err := pki.ParseAuthority(read(t, b.DataDir("s1")+"/pki/ca.crt"), nil)
	if err != nil {
		t.Fatal(err)
	}
	b.ca = newCA
	for what, cert := range map[string]*tls.Certificate{"an administrator": masters, "the front proxy": proxy,
		"a server": server} {
		if answer, err := doors["API: Secrets"](b, cert); answer != unknown || err != nil {
			t.Errorf("after the exchange, forged as %s: %s, %v", what, answer, err)
		}
	}
	b.expelled(t, "after the exchange",
		map[string]*tls.Certificate{"a server": server, "a server without an ID": nobody}, unknown, "s1", "s2", "s3")
}

// TestAServerThatWasOffAtAnUndo takes part in an exchange and is off while that is given up, and
// perhaps another one begun. The others have other keys then, and no word of the CA that it knows.
// It comes back by itself.
func TestAServerThatWasOffAtAnUndo(t *testing.T) {
	needs.AllTests(t)
	c := Start(t, Options{Servers: 3, Agents: 1})
	c.Dev(t, "stop", "a1") // an exchange waits for it
	begin := func(servers ...string) {
		t.Helper()
		c.Barque(t, "cert", "rotate", "--ca", "--yes", "--wait=false")
		Eventually(t, deadline, "the exchange is under way", func(context.Context) error {
			for _, s := range servers {
				if pem := string(read(t, c.DataDir(s)+"/pki/ca.crt")); strings.Count(pem, "BEGIN CERTIFICATE") != 2 {
					return fmt.Errorf("%s believes one CA", s)
				}
				if _, err := os.Stat(c.DataDir(s) + "/peer-keys.json"); err != nil {
					return fmt.Errorf("%s does not judge: %w", s, err)
				}
			}
			return nil
		})
	}
	for _, again := range []bool{false, true} {
		begin("s1", "s2", "s3")
		Eventually(t, deadline, "all servers are in step", c.InStep)
		c.Dev(t, "stop", "s3")
		c.Barque(t, "cert", "rotate", "--ca", "--undo", "--yes")
		if again {
			begin("s1", "s2")
		}
		c.DevResult(t.Context(), "start", "s3") // which may not wait for as long
		Eventually(t, 2*deadline, fmt.Sprintf("s3 is back after an undo, with another exchange begun: %t", again),
			c.InStep)
	}
}

// expelled tries certificates of servers, by the old CA of peers, at each server: at its own port,
// at its kubelet, and where the keys are given that all share. The thief has itself recorded first,
// if it can. want is the answer at a server's own port.
func (b *building) expelled(
	t *testing.T, when string, forged map[string]*tls.Certificate, want string, servers ...string,
) {
	t.Helper()
	var cas []*pki.Authority
	for text := read(t, b.DataDir(servers[0])+"/pki/ca.crt"); ; {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		ca, err := pki.ParseAuthority(pem.EncodeToMemory(block), nil)
		if err != nil {
			t.Fatal(err)
		}
		cas, text = append(cas, ca), rest
	}
	for what, cert := range forged {
		for _, s := range servers { // the one that leads takes proposals
			at := *b
			at.at = maps.Clone(b.at)
			at.at["s1"] = b.at[s]
			for _, door := range []string{"Raft", "store"} {
				if answer, err := doors[door](&at, cert); answer != want || err != nil {
					t.Errorf("%s, forged as %s, %s of %s: %s, %v", when, what, door, s, answer, err)
				}
			}
			record := fmt.Appendf(nil, `{"digest":%q}`, pki.KeyOf(cert.Leaf))
			request := command.AppendRequest(nil,
				&command.Request{Kind: command.KindTxn,
					Txn: kv.Txn{Ops: []kv.Op{{Kind: kv.Put, Key: "/barque/join/server/s1", Value: record}}}})
			if data, answer, err := at.ask(cert, peer.CallPropose, request); answer != want || err != nil {
				t.Errorf("%s, forged as %s, it records its key at %s: %s, %s, %v", when, what, s, answer, data, err)
			}
			if answer, err := b.get(b.at[s]+":10250", "/pods", cert); answer != unknown || err != nil {
				t.Errorf("%s, forged as %s, at the kubelet of %s: %s, %v", when, what, s, answer, err)
			}
		}
		for _, ca := range cas {
			answer, err := b.join(cert, func(ctx context.Context, c *join.Client) error {
				_, err := c.SharedKey(ctx, ca.Digest())
				return err
			})
			if answer != want || err != nil {
				t.Errorf("%s, forged as %s, the key of %s: %s, %v", when, what, ca.Certificate().Subject, answer, err)
			}
		}
	}
}

// TestAnExchangeWithAnEarlierServer: while one server is of an earlier version, which has another
// key after each start, the exchange locks it out at no time. A thief of the old CA is expelled
// once it is upgraded, in the middle of the exchange.
func TestAnExchangeWithAnEarlierServer(t *testing.T) {
	needs.AllTests(t)
	earlier := os.Getenv(earlierVariable)
	if earlier == "" {
		needs.Missing(t, "the barque of an earlier version ("+earlierVariable+"; make upgrades)",
			"an exchange of the CA in the middle of an upgrade")
	}
	present, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	c := Start(t, Options{Servers: 3, Agents: 1, Binary: earlier})
	if _, err := os.Stat(c.DataDir("s1") + "/pki/front-proxy-ca.key"); errors.Is(err, fs.ErrNotExist) {
		needs.Missing(t, "an earlier version with a CA for each purpose",
			"an exchange of the CA in the middle of an upgrade")
	}
	b := newBuilding(t, c)
	server := b.issueFor(pki.Peers,
		pki.Request{CommonName: "s1", Organization: []string{join.ServersOrganization}, Usage: pki.Client | pki.Server,
			Holder: b.idOf("s1")})
	restart := func(how, binary, name string) {
		t.Helper()
		c.Upgrade(binary)
		b.Dev(t, how, name)
		b.Dev(t, "start", name)
		Eventually(t, deadline, "all servers are in step after a restart of "+name, c.InStep)
	}
	restart("stop", present, "s1")
	restart("stop", present, "s2")
	b.Dev(t, "stop", "a1")
	b.Barque(t, "cert", "rotate", "--ca", "--yes", "--wait=false")
	Eventually(t, deadline, "the exchange is under way", func(ctx context.Context) error {
		for _, s := range []string{"s1", "s2", "s3"} {
			if pem := string(read(t, b.DataDir(s)+"/pki/ca.crt")); strings.Count(pem, "BEGIN CERTIFICATE") != 2 {
				return fmt.Errorf("%s believes one CA", s)
			}
		}
		return nil
	})
	restart("kill", earlier, "s3")
	restart("kill", present, "s1")
	restart("stop", present, "s3")
	Eventually(t, deadline, "the thief is expelled", func(ctx context.Context) error {
		for _, door := range []string{"Raft", "store"} {
			if answer, err := doors[door](b, server); answer != no || err != nil {
				return fmt.Errorf("%s: %s, %v", door, answer, err)
			}
		}
		return nil
	})
	restart("kill", present, "s2")
	b.Dev(t, "start", "a1")
	if r := b.BarqueResult(t.Context(), "cert", "rotate", "--ca", "--yes"); r.Error != nil {
		t.Errorf("the exchange: %s%s", r.Out, r.Err)
	}
	c.useServersKubeconfig(t)
	Eventually(t, deadline, "a whole cluster", c.Healthy)
}

// renewAs asks for an agent's new certificates.
func (b *building) renewAs(cert *tls.Certificate, address string) error {
	b.Helper()
	key, ok := cert.PrivateKey.(crypto.Signer)
	if !ok {
		b.Fatalf("a key of type %T", cert.PrivateKey)
	}
	csr, err := pki.SigningRequest(key)
	if err != nil {
		b.Fatal(err)
	}
	client, err := join.NewClient(b.at["s1"]+":6443", b.ca, cert, time.Now)
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	_, err = client.Renew(b.Context(), join.Renewal{CSR: csr, GossipKey: make([]byte, 32), Address: address})
	return err
}

// refusedWith reports whether an error of package join is that refusal.
func refusedWith(err error, status int, text string) bool {
	var refused *join.RefusedError
	return errors.As(err, &refused) && refused.Status == status && strings.Contains(refused.Reason, text)
}
