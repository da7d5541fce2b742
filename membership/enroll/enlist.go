package enroll

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/internal/nodename"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/membership/admissions"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/skew"
	"github.com/barque/barque/pki"
)

// step is what a server does to come to the record of its cluster.
type step int

const (
	wiping     step = iota // it drops the store of before, as it was about to
	rejoining              // it joins as a new server, and then drops its store
	continuing             // it starts with its data
	restoring              // it begins a new cluster with a backup
	beginning              // it begins a new cluster
	asking                 // it asks a server of a cluster for admission
)

// decide returns the step of a server with a record; nil is none. wipe is whether --wipe counts.
func decide(r *Record, o *Options, wipe bool) (step, error) {
	switch {
	case r != nil && r.Phase == PhaseWiping:
		return wiping, nil
	case r != nil && r.Phase != PhaseAsking && wipe && !r.joiningBy(o.Token):
		return rejoining, nil
	case r != nil && r.Phase != PhaseAsking:
		return continuing, nil
	}
	if err := o.checkNew(); err != nil {
		return 0, err
	}
	switch {
	case r != nil && o.Join == "":
		return 0, fmt.Errorf("data directory %s was about to join the cluster at %s when it was stopped: "+
			"give --join and --token again, or use an empty directory to begin a new cluster", o.DataDir, r.Asked)
	case o.Restore.File != "":
		return restoring, nil
	case o.Join == "":
		return beginning, nil
	}
	return asking, nil
}

// Server returns this server's record of its cluster. The record comes from the data directory, or
// from the server that it joins, or it begins a new cluster.
func Server(ctx context.Context, o *Options, logger *slog.Logger) (*Record, error) {
	if err := o.checkCA(); err != nil {
		return nil, err
	}
	if err := useDirectory(o.DataDir, logger); err != nil {
		return nil, err
	}
	if _, err := finishRejoin(o, pki.RoleServer, logger); err != nil {
		return nil, err
	}
	r, err := Load(o.DataDir)
	if err != nil {
		return nil, err
	}
	wipe, err := r.counts(o.Wipe, "--wipe", o, logger)
	if err != nil {
		return nil, err
	}
	next, err := decide(r, o, wipe)
	if err != nil {
		return nil, err
	}
	switch next {
	case wiping:
		return r, r.wipe(logger)
	case rejoining:
		return rejoin(ctx, o, r, logger)
	case continuing:
		return r, r.resume(o, logger)
	case restoring:
		return restoreRecord(o, logger)
	case beginning:
		return begin(o, logger)
	}
	return ask(ctx, o, logger)
}

// resume checks that the options fit the server that this machine is already.
func (r *Record) resume(o *Options, logger *slog.Logger) error {
	if o.Replace && r.Phase == PhaseMember {
		logger.Info("--replace was used up when this node was let in: it starts with its data", "dataDir", r.Dir)
	}
	o.warnOfCA(logger)
	return errors.Join(r.SameNode(o, pki.RoleServer), r.sameRestore(o), endAttempt(o.DataDir))
}

// begin begins a new cluster.
func begin(o *Options, logger *slog.Logger) (*Record, error) {
	id := rand.Text()[:10]
	cas, err := o.newCAs(id)
	if err != nil {
		return nil, err
	}
	ca := cas.clients.Certificate()
	logger.Info("beginning a new cluster", "cluster", id, "dataDir", o.DataDir, "ca", ca.Subject, "caEnds", ca.NotAfter)
	return bootstrapRecord(o, id, cas)
}

// ask joins the cluster of a server. The record says that it is about to, so that a killed one does
// not begin a cluster of its own.
func ask(ctx context.Context, o *Options, logger *slog.Logger) (*Record, error) {
	client, err := greet(ctx, o, pki.RoleServer, logger)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	r := &Record{Dir: o.DataDir, Phase: PhaseAsking, Name: o.Name, Role: pki.RoleServer, Asked: o.Join}
	if err := r.Save(); err != nil {
		return nil, err
	}
	request, err := o.joinRequest()
	if err != nil {
		return nil, err
	}
	grant, err := askToServe(ctx, client, request, logger)
	if err != nil {
		return nil, err
	}
	if err := saveGrant(o, grant); err != nil {
		return nil, err
	}
	token, err := pki.ParseToken(o.Token)
	if err != nil {
		return nil, err
	}
	logger.Info("admitted to the cluster", "cluster", grant.Cluster.ID, "by", o.Join)
	r = &Record{Dir: o.DataDir, Phase: PhaseJoining, Name: o.Name, Role: pki.RoleServer, Cluster: grant.Cluster,
		Token: token.ID}
	if o.Wipe {
		r.Spent = token.ID
	}
	return r, errors.Join(r.Save(), endAttempt(o.DataDir))
}

// checkNew returns why this machine could not register as a node. Nodes that have data were
// admitted by an earlier version, and start as they are.
func (o *Options) checkNew() error {
	if err := nodename.Check(o.Name); err != nil {
		return WrongOption("%v; give another one with --name", err)
	}
	for _, key := range slices.Sorted(maps.Keys(o.Labels)) {
		if err := nodename.CheckLabel(key, o.Labels[key]); err != nil {
			return WrongOption("--node-label: %v", err)
		}
	}
	return nil
}

// joiningBy reports whether the server was admitted by that token and is no member yet. A restart
// with the same arguments continues that join. The token may be used up.
func (r *Record) joiningBy(token string) bool {
	t, err := pki.ParseToken(token)
	return err == nil && r.Phase == PhaseJoining && r.Token == t.ID
}

// saveGrant puts the secrets of the cluster in place.
func saveGrant(o *Options, grant join.ServerGrant) error {
	for name, data := range grant.Keys {
		if name != filepath.Base(name) {
			return fmt.Errorf("%s sends a key named %q", o.Join, name)
		}
		if err := atomicfile.Write(filepath.Join(credentials.Dir(o.DataDir), name), data, 0o600); err != nil {
			return err
		}
	}
	return errors.Join(dropOtherKeys(o.DataDir, grant.Keys), credentials.DropPeerKey(o.DataDir),
		admissions.TakePeers(o.DataDir, grant.PeerKeys), credentials.WriteCA(o.DataDir, grant.Cluster.CA))
}

// dropOtherKeys removes the keys that the directory has of before and the cluster does not use.
func dropOtherKeys(dataDir string, keys map[string][]byte) error {
	for use, name := range credentials.KeyFiles() {
		if _, has := keys[name]; has || !use.Optional() {
			continue
		}
		if err := atomicfile.Remove(filepath.Join(credentials.Dir(dataDir), name)); err != nil {
			return err
		}
	}
	return nil
}

// rejoin makes a server with data join as a new one. The cluster decides: it does not admit a
// current member. So no needed data are dropped. The drop is recorded first, and the next start
// continues it.
func rejoin(ctx context.Context, o *Options, old *Record, logger *slog.Logger) (*Record, error) {
	if o.Join == "" {
		return nil, WrongOption("--wipe is for joining again: give --join and --token")
	}
	if err := old.sameName(o, pki.RoleServer); err != nil {
		return nil, err
	}
	client, err := greet(ctx, o, pki.RoleServer, logger)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	request, err := o.joinRequest()
	if err != nil {
		return nil, err
	}
	grant, err := askToServe(ctx, client, request, logger)
	if err == nil {
		err = old.sameCluster(grant.Cluster) // another one cannot tell whether this data is needed
	}
	if err != nil {
		return nil,
			fmt.Errorf("nothing was wiped: %w; a member of the cluster starts with its data, without --wipe", err)
	}
	logger.Info("admitted to the cluster as a new server", "cluster", grant.Cluster.ID, "was", old.Cluster.ID, "by",
		o.Join)
	r, err := rejoinBy(o, rejoinPlan{Server: &grant})
	if err != nil {
		return nil, err
	}
	return r, r.wipe(logger)
}

// wipe drops the store of the server that this machine was before.
func (r *Record) wipe(logger *slog.Logger) error {
	dir := StoreDir(r.Dir)
	logger.Info("dropping the old store", "dir", dir)
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("drop the old store: %w", err)
	}
	r.Phase = PhaseJoining
	return r.Save()
}

// StoreDir is where the store of a server is.
func StoreDir(dataDir string) string { return filepath.Join(dataDir, "store") }

// greet proves, by the token, that the address belongs to the right cluster. It refuses a server
// whose version this one does not fit: one of an earlier version may not know the rule.
func greet(ctx context.Context, o *Options, role string, logger *slog.Logger) (*join.Client, error) {
	if o.Token == "" {
		return nil,
			WrongOption(
				"joining needs a token: make one on a server with `barque token create` and give it with --token or --token-file")
	}
	t, err := pki.ParseToken(o.Token)
	if err != nil {
		return nil, err
	}
	ca, err := join.RetryWhenBusy(ctx, logger, func() (*pki.Authority, error) { return join.FetchCA(ctx, o.Join, t) })
	if err != nil {
		return nil, err
	}
	if err := o.fits(ctx, role, ca, logger); err != nil {
		return nil, err
	}
	return join.NewClient(o.Join, ca, nil, time.Now)
}

func (o *Options) joinRequest() (join.Request, error) {
	attempt, err := attemptOf(o.DataDir)
	return join.Request{Token: o.Token, Name: o.Name, Address: o.Address.String(), Version: version.String(),
		Clock: time.Now(), Labels: o.Labels, Replace: o.Replace, DataKeys: join.DataKeysForm, CAs: pki.BundleForm,
		Attempt: attempt}, err
}

func askToServe(
	ctx context.Context, client *join.Client, request join.Request, logger *slog.Logger,
) (join.ServerGrant, error) {
	return join.RetryWhenBusy(ctx, logger, func() (join.ServerGrant, error) {
		request.Clock = time.Now()
		return client.Server(ctx, request)
	})
}

// attemptOf returns the random text that identifies all retries of this machine's join as one
// attempt. An attempt costs one use of the token.
func attemptOf(dataDir string) (string, error) {
	path := attemptPath(dataDir)
	text, err := os.ReadFile(path)
	if err == nil && len(text) > 0 {
		return string(text), nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	fresh := rand.Text()
	return fresh, atomicfile.Write(path, []byte(fresh), 0o600)
}

// endAttempt is called when the machine has joined: the next time is another attempt.
func endAttempt(dataDir string) error {
	return atomicfile.Remove(attemptPath(dataDir))
}

func attemptPath(dataDir string) string {
	return filepath.Join(credentials.Dir(dataDir), "join.attempt")
}

// storeJoiner is the store's interface for becoming a member.
type storeJoiner interface {
	Join(ctx context.Context, peers []string) error
}

// BecomeMember makes this server a member of the store. It waits without a limit, because the
// cluster may have no leader now.
func BecomeMember(ctx context.Context, r *Record, store storeJoiner) error {
	var peers []string
	for _, s := range r.Cluster.Servers {
		peers = append(peers, s.Peer.String())
	}
	if err := store.Join(ctx, peers); err != nil {
		return fmt.Errorf("become a member of the store by %v: %w", peers, err)
	}
	r.Phase = PhaseMember
	return r.Save()
}

// Agent is Server for an agent: it also gets its certificates.
func Agent(ctx context.Context, o *Options, logger *slog.Logger) (*Record, error) {
	if err := useDirectory(o.DataDir, logger); err != nil {
		return nil, err
	}
	if r, err := finishRejoin(o, pki.RoleAgent, logger); err != nil || r != nil {
		return r, err
	}
	r, err := Load(o.DataDir)
	if err != nil {
		return nil, err
	}
	again, err := r.counts(o.Rejoin, "--rejoin", o, logger)
	if err != nil {
		return nil, err
	}
	switch {
	case r != nil && !again:
		return r, errors.Join(r.SameNode(o, pki.RoleAgent), endAttempt(o.DataDir))
	case r != nil:
		if err := r.sameName(o, pki.RoleAgent); err != nil {
			return r, err
		}
	default:
		if err := o.checkNew(); err != nil {
			return nil, err
		}
	}
	if o.Join == "" {
		return nil, WrongOption("an agent needs the address of a server: give --server https://ADDR:6443")
	}
	client, err := greet(ctx, o, pki.RoleAgent, logger)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	key, err := pki.LoadOrCreateKey(filepath.Join(credentials.Dir(o.DataDir), "node.key"))
	if err != nil {
		return nil, err
	}
	gossip, err := credentials.GossipKeyOf(o.DataDir)
	if err != nil {
		return nil, err
	}
	request, err := o.joinRequest()
	if err != nil {
		return nil, err
	}
	if request.CSR, err = pki.SigningRequest(key); err != nil {
		return nil, err
	}
	request.GossipKey = gossip.Public().(ed25519.PublicKey)
	grant, err := join.RetryWhenBusy(ctx, logger, func() (join.AgentGrant, error) {
		request.Clock = time.Now()
		return client.Agent(ctx, request)
	})
	if err != nil {
		return nil, err
	}
	logger.Info("admitted to the cluster", "cluster", grant.Cluster.ID, "by", o.Join)
	if r != nil {
		if err := r.sameCluster(grant.Cluster); err != nil {
			return nil, err
		}
		return rejoinBy(o, rejoinPlan{Agent: &grant})
	}
	if err := credentials.SaveCertificates(o.DataDir, grant.Certificates); err != nil {
		return nil, err
	}
	if err := credentials.WriteCA(o.DataDir, grant.Cluster.CA); err != nil {
		return nil, err
	}
	token, err := pki.ParseToken(o.Token)
	if err != nil {
		return nil, err
	}
	r = &Record{Dir: o.DataDir, Phase: PhaseMember, Name: o.Name, Role: pki.RoleAgent, Cluster: grant.Cluster,
		Token: token.ID, Fresh: true}
	if o.Rejoin {
		r.Spent = token.ID
	}
	return r, errors.Join(r.Save(), endAttempt(o.DataDir))
}

// GossipSeeds returns the servers' last known gossip addresses.
func (r *Record) GossipSeeds() []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range r.Servers() {
		out = append(out, s.Gossip)
	}
	return out
}

// fits returns the reason why a node of this version may not join by the server, as the preflight
// finds it. A server that does not tell its version, as without anonymous requests, judges itself.
func (o *Options) fits(ctx context.Context, role string, ca *pki.Authority, logger *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, preflightTimeout)
	defer cancel()
	theirs, _, err := join.AskVersion(ctx, o.Join, ca)
	if err != nil || theirs == "" {
		logger.Debug("the server does not tell its version", "server", o.Join, "err", err)
		return nil
	}
	return skew.Join("this machine", role, version.String(), []skew.Server{{Name: o.Join, Version: theirs}})
}
