package authn

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// Keys returns the key that signs service-account tokens at this moment, an ECDSA P-256 or an RSA
// key, and the other public keys that verify them.
type Keys func() (sign crypto.Signer, others []crypto.PublicKey)

// Issuer signs service-account tokens and knows the keys that verify them. It reads the keys each
// time, so that they can be exchanged while the server runs. It is safe for concurrent use.
type Issuer struct {
	url  string
	keys Keys
	now  func() time.Time
}

// NewIssuer returns an issuer of tokens.
func NewIssuer(url string, keys Keys, now func() time.Time) (*Issuer, error) {
	if url == "" || keys == nil {
		return nil, fmt.Errorf("service-account tokens need an issuer URL and keys")
	}
	i := &Issuer{url: url, keys: keys, now: now}
	if _, err := i.signer(); err != nil {
		return nil, err
	}
	_, err := i.keySet()
	return i, err
}

func (i *Issuer) signer() (jose.Signer, error) {
	key, _ := i.keys()
	if key == nil {
		return nil, fmt.Errorf("this server has no key that signs service-account tokens")
	}
	alg, err := algorithm(key.Public())
	if err != nil {
		return nil, err
	}
	id, err := keyID(key.Public())
	if err != nil {
		return nil, err
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		return nil, fmt.Errorf("service-account signing key: %w", err)
	}
	return signer, nil
}

// keySet are the public keys; the key that signs is the first.
func (i *Issuer) keySet() (set jose.JSONWebKeySet, err error) {
	sign, keys := i.keys()
	if sign != nil {
		keys = append([]crypto.PublicKey{sign.Public()}, keys...)
	}
	for _, k := range keys {
		alg, err := algorithm(k)
		if err != nil {
			return set, err
		}
		id, err := keyID(k)
		if err != nil {
			return set, err
		}
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: k, KeyID: id, Algorithm: string(alg), Use: "sig"})
	}
	return set, nil
}

func algorithm(key crypto.PublicKey) (jose.SignatureAlgorithm, error) {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return jose.RS256, nil
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() {
			return jose.ES256, nil
		}
	}
	return "", fmt.Errorf("service-account key of type %T: use ECDSA P-256 or RSA", key)
}

// keyID derives a name from the key itself, so that all servers call it the same.
func keyID(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("service-account public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return base64.RawURLEncoding.EncodeToString(sum[:]), nil
}

// URL of the issuer, the iss claim of its tokens.
func (i *Issuer) URL() string { return i.url }

// Issue signs a token, and returns its credential ID and expiry with it.
func (i *Issuer) Issue(b Binding) (token, id string, expires time.Time, err error) {
	now := i.now()
	c := b.claims(i.url, string(uuid.NewUUID()), now)
	signer, err := i.signer()
	if err == nil {
		token, err = jwt.Signed(signer).Claims(c).Serialize()
	}
	if err != nil {
		return "", "", time.Time{},
			fmt.Errorf("signing a token for service account %s/%s: %w", b.Namespace, b.ServiceAccount, err)
	}
	return token, credentialID(c.ID), c.Expiry.Time(), nil
}

// verify checks signature, issuer, and time. mine is false for tokens of other issuers, which other
// authenticators may know.
func (i *Issuer) verify(token string) (c claims, mine bool, err error) {
	if mine, err = i.open(token, i.url, &c); err == nil && mine {
		err = inTime(c.Claims, i.now())
	}
	return c, mine, err
}

// open checks the signature of a token of an issuer name, and reads its claims. mine is false for
// others.
func (i *Issuer) open(token, issuer string, claims any) (mine bool, err error) {
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.ES256, jose.RS256})
	if err != nil {
		return false, nil
	}
	var unverified jwt.Claims
	if err := parsed.UnsafeClaimsWithoutVerification(&unverified); err != nil || unverified.Issuer != issuer {
		return false, nil
	}
	keys, err := i.keySet()
	if err != nil {
		return true, err
	}
	for _, key := range candidates(keys, parsed) {
		if parsed.Claims(key.Key, claims) == nil {
			return true, nil
		}
	}
	return true, revokedf("the signature of the service-account token does not match any known key")
}

// clocksDiffer is how far the clock of the issuing server may be ahead of the clock of the
// verifying one, as in Kubernetes: pods use their tokens at once, at any server.
const clocksDiffer = time.Minute

// inTime checks when a token begins and ends. Its end is exact. The cluster issues none without an
// end: one comes from another program that has the key.
func inTime(c jwt.Claims, now time.Time) error {
	if c.Expiry == nil {
		return errors.New("it has no end (claim exp), which every token of this cluster has")
	}
	if now.After(c.Expiry.Time()) {
		return jwt.ErrExpired
	}
	return c.ValidateWithLeeway(jwt.Expected{Time: now}, clocksDiffer)
}

func candidates(set jose.JSONWebKeySet, t *jwt.JSONWebToken) []jose.JSONWebKey {
	for _, h := range t.Headers {
		if keys := set.Key(h.KeyID); len(keys) > 0 {
			return keys
		}
	}
	return set.Keys
}

// Paths of the discovery documents.
const (
	ConfigurationPath = "/.well-known/openid-configuration"
	KeysPath          = "/openid/v1/jwks"
)

// ServeConfiguration serves the OpenID provider document; jwksURI is the public address of
// KeysPath.
func (i *Issuer) ServeConfiguration(jwksURI func() string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		set, err := i.keySet()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		algorithms := map[string]bool{}
		var list []string
		for _, k := range set.Keys {
			if !algorithms[k.Algorithm] {
				algorithms[k.Algorithm] = true
				list = append(list, k.Algorithm)
			}
		}
		serveJSON(w, "application/json", map[string]any{
			"issuer":                                i.url,
			"jwks_uri":                              jwksURI(),
			"response_types_supported":              []string{"id_token"},
			"subject_types_supported":               []string{"public"},
			"id_token_signing_alg_values_supported": list,
		})
	})
}

// ServeKeys serves the public keys as a JSON Web Key set.
func (i *Issuer) ServeKeys() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		set, err := i.keySet()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		serveJSON(w, "application/jwk-set+json", set)
	})
}

func serveJSON(w http.ResponseWriter, contentType string, doc any) {
	body, err := json.Marshal(doc)
	if err != nil {
		http.Error(w, "encoding the document: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "public, max-age=3600")
	_, _ = w.Write(body) // the client has gone; nothing is left to do
}
