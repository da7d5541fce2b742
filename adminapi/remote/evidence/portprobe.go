package evidence

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/barque/barque/clusterstatus/cis"
)

// portTimeout bounds each connection to a port.
const portTimeout = 5 * time.Second

// probePort looks at a port as a stranger: without credentials. It asks path for data, unless that
// is "".
func probePort(ctx context.Context, address, path string, roots *x509.CertPool) cis.PortProbe {
	var d cis.PortProbe
	seen, err := shake(ctx, address, &tls.Config{MinVersion: tls.VersionTLS12})
	if err != nil {
		var record tls.RecordHeaderError
		if errors.As(err, &record) {
			d.Plain = true
			return d
		}
		d.Unreached = fmt.Sprintf("%s: %v; run this on a server", address, err)
		return d
	}
	d.AsksForCertificate, d.DemandsIt = seen.asked, seen.refused
	if leaf := seen.leaf; leaf != nil {
		d.Subject, d.Issuer = leaf.Subject.CommonName, hex.EncodeToString(leaf.AuthorityKeyId)
		_, err := leaf.Verify(
			x509.VerifyOptions{Roots: roots, Intermediates: seen.rest,
				KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		d.Verified = err == nil
	}
	if d.Weak, err = weak(ctx, address); err != nil {
		d.Untried = fmt.Sprintf("%s: not all suites were tried: %v", address, err)
	}
	if path != "" {
		if d.Anonymous, err = status(ctx, "https://"+address+path); err != nil {
			d.Unreached = fmt.Sprintf("%s: %v", address, err)
		}
	}
	return d
}

// handshake is the part of a handshake that a stranger sees.
type handshake struct {
	leaf    *x509.Certificate
	rest    *x509.CertPool
	asked   bool // for a certificate
	refused bool // without one
	suite   uint16
	version uint16
}

// shake makes a handshake. Every certificate is taken: the caller judges it.
func shake(ctx context.Context, address string, config *tls.Config) (*handshake, error) {
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	plain, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	end, _ := ctx.Deadline()
	if err := plain.SetDeadline(end); err != nil {
		return nil, err
	}
	h := &handshake{rest: x509.NewCertPool()}
	config = config.Clone()
	config.InsecureSkipVerify = true
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		h.asked = true
		return &tls.Certificate{}, nil
	}
	config.VerifyPeerCertificate = func(raw [][]byte, _ [][]*x509.Certificate) error {
		for i, der := range raw {
			c, err := x509.ParseCertificate(der)
			switch {
			case err != nil:
				return err
			case i == 0:
				h.leaf = c
			default:
				h.rest.AddCert(c)
			}
		}
		return nil
	}
	conn := tls.Client(plain, config)
	err = conn.HandshakeContext(ctx)
	state := conn.ConnectionState()
	h.suite, h.version = state.CipherSuite, state.Version
	switch {
	case err != nil && h.leaf != nil && h.asked && isAlert(err): // TLS 1.2 refuses within the handshake
		h.refused = true
		return h, nil
	case err != nil:
		return nil, err
	case h.asked && h.version >= tls.VersionTLS13:
		h.refused, err = refuses(conn)
	}
	return h, err
}

// isAlert reports whether the other side has refused by TLS. Any other error, such as a time-out or
// the end of the connection, proves nothing.
func isAlert(err error) bool {
	var alert *net.OpError
	return errors.As(err, &alert) && alert.Op == "remote error"
}

// refusalTime is how long a server of TLS 1.3 has to refuse a client after its handshake.
const refusalTime = time.Second

// refuses reports whether the other side refuses a client after the handshake. One that waits for a
// request has taken it.
func refuses(conn net.Conn) (bool, error) {
	if err := conn.SetReadDeadline(time.Now().Add(refusalTime)); err != nil {
		return false, err
	}
	_, err := conn.Read(make([]byte, 1))
	var network net.Error
	switch {
	case err == nil, errors.As(err, &network) && network.Timeout():
		return false, nil
	case isAlert(err):
		return true, nil
	}
	return false, fmt.Errorf("it ends the connection without a word: %w", err)
}

// weak returns the protocols and suites that a port accepts and the benchmark does not list. With
// an error there may be more.
func weak(ctx context.Context, address string) (accepted []string, err error) {
	old, err := shake(ctx, address,
		&tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11, CipherSuites: cis.WeakSuites()})
	switch {
	case err == nil:
		accepted = append(accepted, tls.VersionName(old.version))
	case !isAlert(err):
		return nil, err
	}
	for left := cis.WeakSuites(); len(left) > 0; {
		h, err := shake(ctx, address,
			&tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, CipherSuites: left})
		switch {
		case err != nil && isAlert(err):
			return accepted, nil
		case err != nil:
			return accepted, err
		}
		accepted = append(accepted, tls.CipherSuiteName(h.suite))
		left = slices.DeleteFunc(left, func(s uint16) bool { return s == h.suite })
	}
	return accepted, nil
}

// status asks for a URL without credentials.
func status(ctx context.Context, url string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	// No data are sent or used: only the status counts.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<20))
	return response.StatusCode, err
}

// try finds out whether a port takes connections. Only the machine's refusal proves that none does.
func try(ctx context.Context, host string, port int) cis.Port {
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	switch {
	case err == nil:
		conn.Close() //nolint:errcheck // nothing was sent
		return cis.Port{State: cis.PortOpen}
	case errors.Is(err, syscall.ECONNREFUSED):
		return cis.Port{State: cis.PortClosed}
	}
	return cis.Port{Why: fmt.Sprintf("%v; run this on that machine", err)}
}
