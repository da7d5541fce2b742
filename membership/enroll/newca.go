package enroll

import (
	"log/slog"
	"time"

	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/pki"
)

// checkCA returns why the flags of an external CA cannot count. A server that has data does not
// read the files any more, and they may be gone.
func (o *Options) checkCA() error {
	switch {
	case o.CAFile == "" && o.CAKeyFile == "":
		return nil
	case o.CAFile == "" || o.CAKeyFile == "":
		return WrongOption(
			"--ca-file and --ca-key-file belong together: give both, the certificates of the CA and its key")
	case o.Join != "":
		return WrongOption(
			"--ca-file counts when a cluster begins, and --join joins one, which has its CA: leave --ca-file and --ca-key-file out")
	case o.Restore.File != "":
		return WrongOption(
			"--ca-file is for a cluster that begins empty, and --restore-from has a backup, with the CA of its cluster: leave --ca-file out, " +
				"and exchange the CA afterwards with `barque cert rotate --ca --ca-file CHAIN --ca-key-file KEY`")
	}
	return nil
}

// warnOfCA warns of flags that have done their part: with an empty data directory, as on a new
// disk, they would begin another cluster with the same CA.
func (o *Options) warnOfCA(logger *slog.Logger) {
	if o.CAFile != "" {
		logger.Warn(
			"--ca-file and --ca-key-file count no more, because this server has a cluster: remove them from its configuration. "+
				"A start without the data directory would begin another cluster with the same CA, instead of failing",
			"caFile", o.CAFile, "dataDir", o.DataDir)
	}
}

// newCAs are the CAs of a new cluster.
type newCAs struct {
	clients *pki.Authority
	bundle  pki.Bundle
	keys    map[string][]byte // PEM, by file name
}

// newCAs makes the CAs of a new cluster: one for each purpose. That for clients may be in the
// files.
func (o *Options) newCAs(clusterID string) (cas newCAs, err error) {
	if cas.clients, cas.bundle, err = o.newClientCA(clusterID); err != nil {
		return cas, err
	}
	cas.keys = map[string][]byte{}
	if cas.keys[credentials.CAKey], err = cas.clients.KeyPEM(); err != nil {
		return cas, err
	}
	for purpose, file := range map[pki.Purpose]string{pki.Peers: credentials.PeersKey,
		pki.FrontProxy: credentials.FrontProxyKey} {
		ca, err := pki.CAOf(purpose, clusterID, time.Now())
		if err != nil {
			return cas, err
		}
		if cas.keys[file], err = ca.KeyPEM(); err != nil {
			return cas, err
		}
		cas.bundle = cas.bundle.WithCA(purpose, ca)
	}
	return cas, nil
}

// newClientCA returns the CA for clients of a new cluster, with its key: the one in the files, or
// one of its own.
func (o *Options) newClientCA(clusterID string) (*pki.Authority, pki.Bundle, error) {
	now := time.Now()
	if o.CAFile == "" {
		ca, err := pki.NewAuthority(clusterID, now)
		if err != nil {
			return nil, pki.Bundle{}, err
		}
		return ca, pki.NewBundle(ca), nil
	}
	given, err := pki.ReadExternal(o.CAFile, o.CAKeyFile, now)
	if err != nil {
		return nil, pki.Bundle{}, WrongOption("--ca-file, --ca-key-file: %v", err)
	}
	if err := given.Issues(o.Certificates(), now); err != nil {
		return nil, pki.Bundle{}, WrongOption("--ca-file %s: %v", o.CAFile, err)
	}
	return given.Authority(), pki.NewExternalBundle(given), nil
}
