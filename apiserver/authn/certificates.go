package authn

import (
	cryptox509 "crypto/x509"
	"fmt"
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/utils/lru"

	"github.com/barque/barque/internal/clientcert"
)

// rememberedCertificates is the number of cached client certificates: one of each node that a
// server has as a client, and room for others. Each takes some kilobytes.
const rememberedCertificates = 4096

// certificates authenticates by client certificates, as the API machinery does. The API machinery
// verifies the signature for each request, which is a good part of the cost of a small request.
// Here the result is cached for a certificate. It holds while the authorities are the same, and
// while those that vouch for the certificate are valid. The validity of the certificate itself is
// checked each time.
type certificates struct {
	authorities x509.VerifyOptionFunc
	users       x509.UserConversionFunc
	first       authenticator.Request // verifies all
	verified    *lru.Cache            // *verified by *cryptox509.Certificate, which connections share
}

func newCertificates(authorities x509.VerifyOptionFunc, reserved func(namespace, name string) bool) *certificates {
	users := userConversion(reserved)
	return &certificates{authorities, users, x509.NewDynamic(authorities, users), lru.New(rememberedCertificates)}
}

// userConversion takes the common name as the user. It refuses the service accounts of controllers,
// as their tokens are refused: an earlier version may have signed such a certificate.
func userConversion(reserved func(namespace, name string) bool) x509.UserConversionFunc {
	return func(chain []*cryptox509.Certificate) (*authenticator.Response, bool, error) {
		if namespace, name, err := serviceaccount.SplitUsername(chain[0].Subject.CommonName); err == nil &&
			reserved != nil && reserved(namespace, name) {
			return nil, false,
				fmt.Errorf(
					"the service account %s/%s is a controller's, which needs no certificate: none counts for it",
					namespace, name)
		}
		return x509.CommonNameUserConversion(chain)
	}
}

// verified is a certificate that authorities vouch for.
type verified struct {
	*clientcert.Chain
	again authenticator.Request // verifies the rest
}

// AuthenticateRequest implements authenticator.Request.
func (c *certificates) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	// With intermediate ones, it depends on these, too.
	if r.TLS == nil || len(r.TLS.PeerCertificates) != 1 {
		return c.first.AuthenticateRequest(r)
	}
	options, ok := c.authorities()
	if !ok {
		return nil, false, nil
	}
	sent := r.TLS.PeerCertificates
	if known, ok := c.verified.Get(sent[0]); ok && known.(*verified).Holds(sent, options) {
		return known.(*verified).again.AuthenticateRequest(r)
	}
	chain, err := clientcert.NewChain(sent, options)
	if err != nil {
		return c.first.AuthenticateRequest(r) // whose error has the reason
	}
	v := &verified{chain, c.without(sent[0])}
	c.verified.Add(sent[0], v)
	return v.again.AuthenticateRequest(r)
}

// without returns an authenticator that verifies no signature of the certificate again.
func (c *certificates) without(leaf *cryptox509.Certificate) authenticator.Request {
	itself := cryptox509.NewCertPool()
	itself.AddCert(leaf)
	return x509.NewDynamic(func() (cryptox509.VerifyOptions, bool) {
		options, ok := c.authorities()
		options.Roots = itself
		return options, ok
	}, c.users)
}

// namedCertificates authenticates requests with certificates of some common names, and verifies no
// others.
type namedCertificates struct {
	authorities x509.VerifyOptionFunc
	names       []string
	next        authenticator.Request
}

// AuthenticateRequest implements authenticator.Request.
func (c *namedCertificates) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	if name := r.TLS.PeerCertificates[0].Subject.CommonName; !slices.Contains(c.names, name) {
		if _, ok := c.authorities(); !ok {
			return nil, false, nil
		}
		return nil, false, otherNameError(name)
	}
	return c.next.AuthenticateRequest(r)
}

// otherNameError is the error of a certificate with none of the wanted names. It counts only if no
// other authenticator accepts the request, so its text is made late.
type otherNameError string

// Error implements error, with the text of the API machinery.
func (e otherNameError) Error() string {
	return fmt.Sprintf("x509: subject with cn=%s is not in the allowed list", string(e))
}
