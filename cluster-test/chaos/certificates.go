package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/clock"
	"github.com/barque/barque/pki"
)

func certificateFaults() []fault {
	return []fault{
		{name: "renew certificates", spares: true, run: renewCertificates},
		{name: "ended certificates: agent", run: endedOfAgent},
		{name: "ended certificates: server", needs: clock.Possible, run: endedOfServer},
	}
}

// renewCertificates has all servers issue themselves new certificates, without a restart.
func renewCertificates(ctx context.Context, t *trial) error {
	t.say("all servers")
	before := make(map[string]*x509.Certificate)
	for _, node := range t.all() {
		var err error
		if before[node], err = t.shown(ctx, node); err != nil {
			return err
		}
	}
	if err := t.insist(ctx, "cert", "rotate"); err != nil {
		return err
	}
	for _, node := range t.all() {
		err := t.awaitShown(ctx, node, "another one",
			func(_ time.Time, c *x509.Certificate) bool { return !c.Equal(before[node]) })
		if err != nil {
			return err
		}
	}
	return nil
}

// overSince is for how long certificates have ended. They ended when the node was in the cluster
// already: others are not renewed.
const overSince = time.Second

// endedOfAgent starts an agent whose certificates ended while it was off. It gets new ones by
// itself.
func endedOfAgent(ctx context.Context, t *trial) error {
	node := anAgent(t)[0]
	t.meet(node)
	if err := t.Cluster.KillNodes(ctx, node); err != nil {
		return err
	}
	ca, err := t.authority(t.leader)
	if err != nil {
		return err
	}
	files := []string{"node-client.crt", "node-serving.crt"}
	dir := filepath.Join(t.Cluster.DataDir(node), "pki")
	for _, name := range files {
		if err := end(ca, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	if err := endCredential(ca, filepath.Join(dir, "gossip.credential")); err != nil {
		return err
	}
	if err := t.Cluster.StartNode(ctx, node); err != nil {
		return err
	}
	begin := time.Now()
	alive := true
	err = clustertest.Poll(ctx, patience, func(context.Context) error {
		if alive = t.Cluster.Alive(node); !alive {
			return nil
		}
		for _, name := range files {
			leaf, err := leafOf(filepath.Join(dir, name))
			if err != nil {
				return err
			}
			if time.Now().After(leaf.NotAfter) {
				return fmt.Errorf("%s has a certificate %s that ended at %v", node, name, leaf.NotAfter)
			}
		}
		return nil
	})
	if !alive {
		err = fmt.Errorf("it has ended by itself; its log ends with:\n%s", clustertest.Tail(t.Cluster.LogFile(node), 5))
	}
	t.say("%s, for %v", node, time.Since(begin).Round(time.Millisecond))
	return err
}

// authority is the cluster's CA, of a server's files.
func (t *trial) authority(server string) (*pki.Authority, error) {
	dir := filepath.Join(t.Cluster.DataDir(server), "pki")
	certificate, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		return nil, err
	}
	return pki.ParseAuthority(certificate, key)
}

func leafOf(path string) (*x509.Certificate, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s has no certificate", path)
	}
	return x509.ParseCertificate(block.Bytes)
}

// end puts in the place of a certificate the same one as it was issued long ago.
func end(ca *pki.Authority, path string) error {
	leaf, err := leafOf(path)
	if err != nil {
		return err
	}
	request := pki.Request{CommonName: leaf.Subject.CommonName, Organization: leaf.Subject.Organization,
		Names: leaf.DNSNames}
	for _, ip := range leaf.IPAddresses {
		request.Names = append(request.Names, ip.String())
	}
	for _, u := range leaf.ExtKeyUsage {
		switch u {
		case x509.ExtKeyUsageClientAuth:
			request.Usage |= pki.Client
		case x509.ExtKeyUsageServerAuth:
			request.Usage |= pki.Server
		}
	}
	ended, err := ca.Issue(request, leaf.PublicKey, time.Now().Add(-pki.LeafLifetime-overSince))
	if err != nil {
		return err
	}
	return os.WriteFile(path, ended, 0o644)
}

// endCredential does the same to the proof that a node shows in gossip.
func endCredential(ca *pki.Authority, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	credential, err := ca.VerifyCredential(data, time.Now())
	if err != nil {
		return err
	}
	credential.NotAfter = time.Now().Add(-overSince)
	if data, err = ca.SignCredential(credential); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

// endedOfServer gives a server the clock of more than a year ago, as a machine without a battery
// has it, until it has issued itself certificates by it, and then the right one: all that it shows
// has ended. It renews that by itself.
func endedOfServer(ctx context.Context, t *trial) error {
	node := t.others[0]
	t.meet(node)
	back, err := t.Cluster.MoveClocks(-pki.LeafLifetime-overSince, node)
	if err == nil {
		err = t.awaitShown(ctx, node, "one that has ended",
			func(now time.Time, c *x509.Certificate) bool { return now.After(c.NotAfter) })
	}
	if err := errors.Join(err, back()); err != nil {
		return err
	}
	begin := time.Now()
	err = t.awaitShown(ctx, node, "one that is good", func(now time.Time, c *x509.Certificate) bool {
		return now.After(c.NotBefore) && now.Before(c.NotAfter)
	})
	t.say("%s, for %v", node, time.Since(begin).Round(time.Second))
	return err
}

// awaitShown waits until a server's API shows a certificate of a kind.
func (t *trial) awaitShown(
	ctx context.Context, node, want string, is func(now time.Time, c *x509.Certificate) bool,
) error {
	return clustertest.Poll(ctx, patience, func(ctx context.Context) error {
		c, err := t.shown(ctx, node)
		if err == nil && !is(time.Now(), c) {
			err = fmt.Errorf("%s shows a certificate that is good from %v to %v, want %s", node, c.NotBefore,
				c.NotAfter, want)
		}
		return err
	})
}

// shown returns the certificate that a server's API shows, which is looked at, not trusted.
func (t *trial) shown(ctx context.Context, node string) (*x509.Certificate, error) {
	address, err := t.addressOf(node)
	if err != nil {
		return nil, err
	}
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp",
		net.JoinHostPort(address, "6443"))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0], nil
}
