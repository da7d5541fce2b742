package revocation

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/internal/nodename"
	"github.com/barque/barque/pki"
)

// APIPath is where the API of servers has the revoked certificates.
const APIPath = "/barque/v1/revocations"

// Order is an operator's request to revoke one certificate, or to let an agent in again.
type Order struct {
	Serial string    `json:"serial,omitempty"` // in hexadecimal
	Name   string    `json:"name,omitempty"`
	Holder string    `json:"holder,omitempty"` // the server's ID in it
	Until  time.Time `json:"until,omitzero"`   // the certificate's end; as long as any lasts without it
	Why    string    `json:"why,omitempty"`
	// Force revokes a certificate that a member, or the caller, needs.
	Force bool `json:"force,omitempty"`
	// Readmit is the name of the agent to let in again, in place of Serial.
	Readmit string `json:"readmit,omitempty"`
}

// maxText bounds the texts of an Order.
const maxText = 1 << 10

// Check returns an error for an order that makes no sense.
func (o *Order) Check() error {
	serial, err := hex.DecodeString(o.Serial)
	switch {
	case len(o.Name) > maxText || len(o.Why) > maxText || len(o.Holder) > maxText || len(o.Readmit) > maxText:
		return fmt.Errorf("a text of the request is longer than %d bytes", maxText)
	case o.Readmit != "" && o.Serial != "":
		return errors.New("the request names a certificate and an agent; want one of them")
	case o.Readmit != "":
		return nodename.Check(o.Readmit)
	case err != nil || len(serial) == 0 || len(serial) > 20 || o.Serial != strings.ToLower(o.Serial) || serial[0] == 0:
		return fmt.Errorf("the serial number is %q: want up to 20 bytes in lower-case hexadecimal digits, two for each byte", o.Serial)
	}
	return nil
}

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
		return Order{Serial: SerialOf(cert), Name: cert.Subject.CommonName, Holder: pki.HolderOf(cert), Until: cert.NotAfter}, nil
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

// Revoke makes the order at a server.
func Revoke(ctx context.Context, client rest.Interface, o Order) (e Entry, err error) {
	body, err := json.Marshal(o)
	if err != nil {
		return e, err
	}
	data, err := client.Post().AbsPath(APIPath).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Raw()
	if err != nil {
		return e, err
	}
	return e, json.Unmarshal(data, &e)
}

// All returns the entries of a server.
func All(ctx context.Context, client rest.Interface) (e Entries, err error) {
	data, err := client.Get().AbsPath(APIPath).Do(ctx).Raw()
	if err != nil {
		return e, err
	}
	return e, json.Unmarshal(data, &e)
}
