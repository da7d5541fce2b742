package frontproxy

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	certutil "k8s.io/client-go/util/cert"

	"github.com/barque/barque/apiserver/configfile"
)

// The flags, which are upstream's.
const (
	CAFlag          = "--requestheader-client-ca-file"
	namesFlag       = "--requestheader-allowed-names"
	userHeadersFlag = "--requestheader-username-headers"
	uidHeadersFlag  = "--requestheader-uid-headers"
	groupsFlag      = "--requestheader-group-headers"
	extraFlag       = "--requestheader-extra-headers-prefix"
)

// reservedName begins the names of certificates of Barque's own servers.
const reservedName = "barque:"

// Options are the flags. Without a file of CAs there is no proxy.
type Options struct {
	CAFile string
	// AllowedNames are the common names of the proxies' certificates. Without any, each certificate
	// of the CAs is a proxy's.
	AllowedNames []string

	UserHeaders, UIDHeaders, GroupHeaders, ExtraPrefixes []string
}

// AddFlags adds the flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.CAFile, CAFlag[2:], "",
		"file with the CAs of client certificates of authenticating proxies, which name the user of a request in headers. Not the cluster's CA. A change counts within seconds; give the file to all servers")
	fs.StringSliceVar(&o.AllowedNames, namesFlag[2:], nil,
		"common names of the proxies' certificates. Without this flag every certificate of these CAs is a proxy's")
	fs.StringSliceVar(&o.UserHeaders, userHeadersFlag[2:], nil,
		"headers with the name of the user, such as X-Remote-User; the first one with a value counts")
	fs.StringSliceVar(&o.UIDHeaders, uidHeadersFlag[2:], nil,
		"headers with the UID of the user, such as X-Remote-Uid; the first one with a value counts")
	fs.StringSliceVar(&o.GroupHeaders, groupsFlag[2:], nil,
		"headers with groups of the user, such as X-Remote-Group; all of their values count")
	fs.StringSliceVar(&o.ExtraPrefixes, extraFlag[2:], nil,
		"beginnings of headers with extra fields of the user, such as X-Remote-Extra-")
}

// notOfHeader reports whether a character cannot be in the name of a header (RFC 9110, token).
func notOfHeader(r rune) bool {
	return !strings.ContainsRune("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", r)
}

// lists returns the values of the flags beside the file, by flag.
func (o *Options) lists() map[string][]string {
	return map[string][]string{namesFlag: o.AllowedNames, userHeadersFlag: o.UserHeaders, uidHeadersFlag: o.UIDHeaders,
		groupsFlag: o.GroupHeaders, extraFlag: o.ExtraPrefixes}
}

// Check validates the flags and the file. The error names the flag.
func (o *Options) Check() error {
	lists := o.lists()
	for _, flag := range []string{namesFlag, userHeadersFlag, uidHeadersFlag, groupsFlag, extraFlag} {
		if o.CAFile == "" && len(lists[flag]) > 0 {
			return fmt.Errorf("%s belongs to an authenticating proxy: give %s, with the CA of its certificate", flag,
				CAFlag)
		}
		for _, value := range lists[flag] {
			switch {
			case strings.TrimSpace(value) == "":
				return fmt.Errorf("%s has an empty value", flag)
			case flag != namesFlag && strings.ContainsFunc(value, notOfHeader):
				return fmt.Errorf("%s %q: want the name of an HTTP header", flag, value)
			}
		}
	}
	if o.CAFile == "" {
		return nil
	}
	if len(o.UserHeaders) == 0 {
		return fmt.Errorf("%s needs %s, such as X-Remote-User: without it no request names a user", CAFlag,
			userHeadersFlag)
	}
	for _, name := range o.AllowedNames {
		if strings.HasPrefix(name, reservedName) {
			return fmt.Errorf("%s %q: names that begin with %s are those of the cluster's servers", namesFlag, name,
				reservedName)
		}
	}
	_, err := o.read(nil)
	return err
}

// read reads the file of CAs.
func (o *Options) read(ownCAs func() []byte) (*authorities, error) {
	data, err := configfile.Read(o.CAFile)
	if err != nil {
		return nil, fmt.Errorf("%s %w", CAFlag, err)
	}
	a, err := parse(data, ownCAs)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", CAFlag, o.CAFile, err)
	}
	return a, nil
}

// mostCAs bounds the names of CAs that the API sends in each handshake of TLS.
const mostCAs = 32

// authorities are the CAs of one content of the file.
type authorities struct {
	data    []byte
	pem     []byte
	names   []string
	options x509.VerifyOptions
}

// parse refuses the cluster's own CAs, which ownCAs returns in PEM: each node, user and server has
// a certificate of these, and could pass for a proxy.
func parse(data []byte, ownCAs func() []byte) (*authorities, error) {
	certs, err := certutil.ParseCertsPEM(data)
	if err != nil {
		return nil, fmt.Errorf("want one or more CERTIFICATE blocks in PEM: %w", err)
	}
	var own []*x509.Certificate
	if ownCAs != nil {
		if own, err = certutil.ParseCertsPEM(ownCAs()); err != nil {
			return nil, fmt.Errorf("the cluster's CA: %w", err)
		}
	}
	if len(certs) > mostCAs {
		return nil,
			fmt.Errorf("it has %d certificates: want %d at most, as the API names them to each client", len(certs),
				mostCAs)
	}
	a := &authorities{data: data,
		options: x509.VerifyOptions{Roots: x509.NewCertPool(),
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}}
	for _, cert := range certs {
		if !cert.IsCA {
			return nil, fmt.Errorf("the certificate of %q is no CA's", cert.Subject)
		}
		if slices.ContainsFunc(own, func(o *x509.Certificate) bool {
			return bytes.Equal(o.RawSubjectPublicKeyInfo, cert.RawSubjectPublicKeyInfo)
		}) {
			return nil,
				errors.New(
					"it has the cluster's own CA, of which each node and user has a certificate: make another CA for the proxy")
		}
		a.options.Roots.AddCert(cert)
		a.names = append(a.names, strconv.Quote(cert.Subject.String()))
	}
	a.pem, err = certutil.EncodeCertificates(certs...)
	return a, err
}
