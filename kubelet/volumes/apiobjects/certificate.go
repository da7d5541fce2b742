package apiobjects

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// certificate is the state of one source of a volume.
//
//	nothing ──ask──▶ asked ──issued──▶ issued ──time to refresh, ask──▶ issued and asked
//	   ▲               │ │                ▲                                 │ │
//	   └──the request──┘ │                └──issued, or the request is gone─┘ │
//	      is gone        └──────denied or failed──▶ refused ◀─────────────────┘
type certificate struct {
	issued  *issuedCertificate
	asked   *certificateRequest
	refusal error
}

type issuedCertificate struct {
	key, chain []byte // PEM
	refreshAt  time.Time
	overdueAt  time.Time // zero once it was reported
	endsAt     time.Time // zero once it was reported
}

type certificateRequest struct {
	name      string
	key       []byte
	at        time.Time
	abandonAt time.Time // a request that is not shown is given up then
}

// warning is an event of a pod.
type warning struct{ reason, message string }

// observe takes the API server's object of the request, or nil. later is the delay of a refresh.
func (c *certificate) observe(
	found *certificatesv1.PodCertificateRequest, now time.Time, later time.Duration,
) []warning {
	var told []warning
	if c.asked != nil {
		switch {
		case found != nil:
			if w := c.answer(found, later); w != nil {
				told = append(told, *w)
			}
			if c.asked != nil && !now.Before(c.asked.abandonAt) {
				c.asked.abandonAt = now.Add(lookAgain) // it may be deleted yet
			}
		case !now.Before(c.asked.abandonAt):
			c.asked = nil
		}
	}
	if i := c.issued; i != nil {
		if !i.overdueAt.IsZero() && !now.Before(i.overdueAt) {
			i.overdueAt = time.Time{}
			told = append(told, warning{"CertificateOverdueForRefresh", "PodCertificate refresh overdue"})
		}
		if !i.endsAt.IsZero() && !now.Before(i.endsAt) {
			i.endsAt = time.Time{}
			told = append(told, warning{"CertificateExpired", "PodCertificate expired"})
		}
	}
	return told
}

// answer takes the signer's answer, if there is one.
func (c *certificate) answer(r *certificatesv1.PodCertificateRequest, later time.Duration) *warning {
	name := r.Namespace + "/" + r.Name
	for _, condition := range r.Status.Conditions {
		if condition.Status != metav1.ConditionTrue {
			continue
		}
		var what string
		switch condition.Type {
		case certificatesv1.PodCertificateRequestConditionTypeIssued:
			c.take(r, later)
			return nil
		case certificatesv1.PodCertificateRequestConditionTypeDenied:
			what = "denied"
		case certificatesv1.PodCertificateRequestConditionTypeFailed:
			what = "failed"
		default:
			continue
		}
		c.asked, c.issued = nil, nil
		c.refusal = fmt.Errorf("PodCertificateRequest was permanently %s: reason=%q message=%q", what, condition.Reason,
			condition.Message)
		return &warning{condition.Type,
			fmt.Sprintf("PodCertificateRequest %s was %s, reason=%q, message=%q", name, what, condition.Reason,
				condition.Message)}
	}
	return nil
}

func (c *certificate) take(r *certificatesv1.PodCertificateRequest, later time.Duration) {
	s := &r.Status
	if s.BeginRefreshAt == nil || s.NotAfter == nil {
		c.asked, c.issued = nil, nil
		c.refusal = errors.New("PodCertificateRequest was issued without the times of its certificate")
		return
	}
	c.issued = &issuedCertificate{
		key: c.asked.key, chain: cleanChain(s.CertificateChain), refreshAt: s.BeginRefreshAt.Add(later),
		overdueAt: s.BeginRefreshAt.Add(later + overdueAfter), endsAt: s.NotAfter.Time,
	}
	c.asked = nil
}

// toBeAsked reports whether a certificate must be requested.
func (c *certificate) toBeAsked(now time.Time) bool {
	return c.refusal == nil && c.asked == nil && (c.issued == nil || !now.Before(c.issued.refreshAt))
}

// next returns when the next step is due without an answer; zero for never.
func (c *certificate) next() time.Time {
	var at time.Time
	switch {
	case c.asked != nil:
		at = c.asked.abandonAt
		if c.issued != nil {
			at = sooner(sooner(at, c.issued.overdueAt), c.issued.endsAt)
		}
	case c.issued != nil:
		at = c.issued.refreshAt
	}
	return at
}

// cleanChain drops all but the certificates.
func cleanChain(chain string) []byte {
	var out []byte
	for block, rest := pem.Decode([]byte(chain)); block != nil; block, rest = pem.Decode(rest) {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes})...)
	}
	return out
}

// generateKey makes a key, PKCS#8 in PEM, and the proof of its possession: a PKCS#10 request
// without other content.
func generateKey(kind string) (key, proof []byte, err error) {
	var signer crypto.Signer
	switch kind {
	case "RSA3072":
		signer, err = rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		signer, err = rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		signer, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		signer, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		signer, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, signer, err = ed25519.GenerateKey(rand.Reader)
	default:
		err = fmt.Errorf("key type %q is not known to this node", kind)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the key: %w", err)
	}
	if proof, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, signer); err != nil {
		return nil, nil, fmt.Errorf("sign the request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), proof, nil
}
