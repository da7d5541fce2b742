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
	"time"

	"github.com/barque/barque/clusterstatus/cis"
)

// doorTimeout bounds each connection to a port.
const doorTimeout = 5 * time.Second

// knock looks at a port as a stranger: without credentials. path is asked for data if it is not "".
func knock(ctx context.Context, address, path string, roots *x509.CertPool) cis.Door {
	var d cis.Door
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
		_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: seen.rest, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		d.Verified = err == nil
	}
	d.Weak = weak(ctx, address)
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
	ctx, cancel := context.WithTimeout(ctx, doorTimeout)
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
	if err := conn.HandshakeContext(ctx); err != nil {
		if h.leaf != nil && h.asked { // TLS 1.2 refuses within the handshake
			h.refused = true
			return h, nil
		}
		return nil, err
	}
	state := conn.ConnectionState()
	h.suite, h.version = state.CipherSuite, state.Version
	if h.asked {
		h.refused = hangsUp(conn)
	}
	return h, nil
}

// hangUpTime is how long a server of TLS 1.3 has to refuse a client after its handshake.
const hangUpTime = time.Second

// hangsUp reports whether the other side ends a connection by itself.
func hangsUp(conn net.Conn) bool {
	if conn.SetReadDeadline(time.Now().Add(hangUpTime)) != nil {
		return true
	}
	_, err := conn.Read(make([]byte, 1))
	var network net.Error
	return err != nil && !(errors.As(err, &network) && network.Timeout())
}

// weak returns the protocols and suites that a port accepts and the benchmark does not list.
func weak(ctx context.Context, address string) []string {
	var accepted []string
	old, err := shake(ctx, address, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	if err == nil && old.leaf != nil {
		accepted = append(accepted, tls.VersionName(old.version))
	}
	for left := cis.WeakSuites(); len(left) > 0; {
		h, err := shake(ctx, address, &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12, CipherSuites: left})
		if err != nil || h.suite == 0 {
			break
		}
		accepted = append(accepted, tls.CipherSuiteName(h.suite))
		left = slices.DeleteFunc(left, func(s uint16) bool { return s == h.suite })
	}
	return accepted
}

// status asks for a URL without credentials.
func status(ctx context.Context, url string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, doorTimeout)
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

// open reports whether a port takes connections.
func open(ctx context.Context, host string, port int) bool {
	ctx, cancel := context.WithTimeout(ctx, doorTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return conn.Close() == nil
}
