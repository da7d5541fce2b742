package revocation

import (
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/barque/barque/internal/nodename"
	"github.com/barque/barque/pki"
)

// APIPath is where the API of servers has the revoked certificates.
const APIPath = "/barque/v1/revocations"

// Order is an operator's request to revoke one certificate or those of a user, or to let an agent
// in again.
type Order struct {
	Serial string    `json:"serial,omitempty"` // in hexadecimal
	Name   string    `json:"name,omitempty"`
	Holder string    `json:"holder,omitempty"` // the server's ID in it
	Until  time.Time `json:"until,omitzero"`   // the certificate's end; as long as any lasts without it
	Why    string    `json:"why,omitempty"`
	// Force revokes a certificate that a member, or the caller, needs.
	Force bool `json:"force,omitempty"`
	// User is the common name whose certificates are revoked, in place of Serial.
	User string `json:"user,omitempty"`
	// Readmit is the name of the agent to let in again, in place of Serial.
	Readmit string `json:"readmit,omitempty"`
}

// Made is the answer to an Order. Of a certificate that a member has in use it names the member.
type Made struct {
	Entry
	Node string `json:"node,omitempty"`
	Role string `json:"role,omitempty"` // of the member
	Use  string `json:"use,omitempty"`  // of the certificate, as `barque cert show` has it
}

// maxText bounds the texts of an Order.
const maxText = 1 << 10

// Check returns an error for an order that makes no sense.
func (o *Order) Check() error {
	serial, err := hex.DecodeString(o.Serial)
	switch {
	case max(len(o.Name), len(o.Why), len(o.Holder), len(o.User), len(o.Readmit)) > maxText:
		return fmt.Errorf("a text of the request is longer than %d bytes", maxText)
	case o.Readmit != "" && o.Serial != "", o.User != "" && (o.Serial != "" || o.Readmit != ""):
		return errors.New("the request names more than one of a certificate, a user and an agent; want one of them")
	case o.User != "":
		return checkUser(o.User)
	case o.Readmit != "":
		return nodename.Check(o.Readmit)
	case err != nil || len(serial) == 0 || len(serial) > 20 || o.Serial != strings.ToLower(o.Serial) || serial[0] == 0:
		return fmt.Errorf(
			"the serial number is %q: want up to 20 bytes in lower-case hexadecimal digits, two for each byte",
			o.Serial)
	}
	return nil
}

// checkUser refuses the names of the cluster's own parts. Servers and agents are revoked by their
// removal, which is for good; a user is let in again by a new certificate.
func checkUser(name string) error {
	if !utf8.ValidString(name) {
		return errors.New("the name of the user is no text in UTF-8")
	}
	for _, prefix := range []string{"system:", "barque:"} {
		if strings.HasPrefix(name, prefix) {
			return fmt.Errorf(
				"%q is no user's name but one of the cluster's own parts; `barque cert revoke` revokes a single certificate", name)
		}
	}
	return nil
}

// ErrCA is returned for the certificate of a CA. A CA is exchanged: the certificates that it has
// issued count, whether its own is revoked or not.
var ErrCA = errors.New("it is the certificate of a CA, which is not revoked but exchanged: `barque cert rotate --ca`")

// OrderFor returns the order for the first certificate in a file in PEM, such as one of a user or a
// kubeconfig's client-certificate-data.
func OrderFor(data []byte) (Order, error) {
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			return Order{}, errors.New("no PEM block \"CERTIFICATE\" was found")
		}
		if block.Type != "CERTIFICATE" {
			data = rest
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return Order{}, err
		}
		if cert.IsCA {
			return Order{}, ErrCA
		}
		return Order{Serial: SerialOf(cert), Name: cert.Subject.CommonName, Holder: pki.HolderOf(cert),
			Until: cert.NotAfter}, nil
	}
}

// ParseSerial reads a serial number as openssl and kubectl print it: hexadecimal digits, in either
// case, with colons or without.
func ParseSerial(text string) string {
	digits := strings.ToLower(strings.NewReplacer(":", "", " ", "").Replace(strings.TrimPrefix(text, "0x")))
	if len(digits)%2 == 1 {
		digits = "0" + digits
	}
	for strings.HasPrefix(digits, "00") && len(digits) > 2 {
		digits = digits[2:]
	}
	return digits
}
