package credentials

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// errBelieved is returned when a server takes another one for a kubelet.
var errBelieved = errors.New("the server believes")

// ClientGroups are the organizations in this server's certificates as a client, by their names.
func (ids *Server) ClientGroups() map[string][]string {
	all := map[string][]string{}
	for _, k := range ids.kinds() {
		c := (*k.into).Certificate().Leaf
		if slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth) {
			all[k.name] = append([]string{}, c.Subject.Organization...)
		}
	}
	return all
}

// KubeletClientUser is the name by which kubelets of this cluster know this server at the moment.
func (ids *Server) KubeletClientUser() (string, error) {
	c := ids.KubeletClient.Certificate()
	var others []*x509.Certificate
	for _, der := range c.Certificate[1:] {
		other, err := x509.ParseCertificate(der)
		if err != nil {
			return "", fmt.Errorf("the certificate for kubelets: %w", err)
		}
		others = append(others, other)
	}
	if err := ids.Trust.Verify(c.Leaf, others, x509.ExtKeyUsageClientAuth, time.Now()); err != nil {
		return "", fmt.Errorf("the certificate for kubelets: %w", err)
	}
	return c.Leaf.Subject.CommonName, nil
}

// TryKubelets shows certificates to this server, in memory, as kubelets would: its own node's,
// which it must believe; the same for the name of another node; and one of a strange CA. It returns
// an error when the server is too trustful, or believes nobody.
func (ids *Server) TryKubelets(ctx context.Context) error {
	own := ids.Kubelet.Certificate()
	strange, err := selfSigned(own.Leaf)
	if err != nil {
		return err
	}
	return tryKubelets(ctx, ids.KubeletTLS(), ids.config.Name, own, strange)
}

func tryKubelets(
	ctx context.Context, to func(member string) *tls.Config, name string, own, strange *tls.Certificate,
) error {
	if err := handshake(ctx, to(name), own); err != nil {
		return fmt.Errorf("the server refuses its own node's kubelet: %w", err)
	}
	for what, c := range map[string]struct {
		member string
		shows  *tls.Certificate
	}{"a certificate of a strange CA": {name, strange}, "the certificate of another node": {name + "x", own}} {
		if handshake(ctx, to(c.member), c.shows) == nil {
			return fmt.Errorf("%w %s", errBelieved, what)
		}
	}
	return nil
}

// handshake returns the client's error.
func handshake(ctx context.Context, config *tls.Config, shows *tls.Certificate) error {
	near, far, err := connected()
	if err != nil {
		return err
	}
	defer near.Close()
	served := make(chan struct{})
	go func() { // until the client has closed its end
		defer close(served)
		defer far.Close()
		server := tls.Server(far, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*shows}})
		if server.HandshakeContext(ctx) == nil {
			_, _ = server.Read(make([]byte, 1))
		}
	}()
	config = config.Clone()
	config.ServerName = shows.Leaf.IPAddresses[0].String()
	err = tls.Client(near, config).HandshakeContext(ctx)
	near.Close()
	<-served
	return err
}

// connected returns two ends of a connection with room for what one end sends while the other does:
// that of net.Pipe has none, so both would wait for ever.
func connected() (near, far net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to a false kubelet: %w", err)
	}
	ends := [2]net.Conn{}
	errs := [2]error{}
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "false kubelet")
		ends[i], errs[i] = net.FileConn(file)
		file.Close()
	}
	if err := errors.Join(errs[:]...); err != nil {
		for _, end := range ends {
			if end != nil {
				end.Close()
			}
		}
		return nil, nil, fmt.Errorf("connect to a false kubelet: %w", err)
	}
	return ends[0], ends[1], nil
}

// selfSigned returns a certificate that says the same as another one, by its own key.
func selfSigned(like *x509.Certificate) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: like.Subject, NotBefore: like.NotBefore,
		NotAfter: like.NotAfter, DNSNames: like.DNSNames, IPAddresses: like.IPAddresses,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: like.ExtKeyUsage}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), crypto.Signer(key))
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}
