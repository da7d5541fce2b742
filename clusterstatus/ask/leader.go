package ask

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/backups"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/membership/enroll"
)

// othersPatience is how long the other servers of a cluster are waited for that is to be recovered.
const othersPatience = 3 * time.Second

// HasLeader returns an error if another server of the survivor's cluster answers and has a leader.
// In that case nothing is lost, and a recovery would end a healthy cluster. It returns nil if no
// server answers.
func HasLeader(ctx context.Context, survivor *backups.Survivor) error {
	config, err := remote.LoadConfig(filepath.Join(survivor.DataDir, "admin.kubeconfig"))
	if err != nil || survivor.Recovering != "" {
		return nil
	}
	return hasLeader(ctx, config, survivor.ClusterID, survivor.Name, enroll.KnownServers(survivor.DataDir))
}

// hasLeader asks the servers at the addresses. It returns an error if one of the cluster has a
// leader: the server of that name must not be recovered then.
func hasLeader(ctx context.Context, config *rest.Config, cluster, name string, addresses []string) error {
	ctx, cancel := context.WithTimeout(ctx, othersPatience)
	defer cancel()
	answers := make(chan error, len(addresses))
	for _, address := range addresses {
		go func() { // ends with the answer, or with ctx
			o, err := remote.Observation(ctx, config, address)
			if err != nil || o.Cluster != cluster || leaderOf(o) == "" {
				answers <- nil
				return
			}
			answers <- fmt.Errorf(
				"cluster %s has a leader, %s, according to server %s: start %s instead, and nothing is lost. To recover %s all the same, stop the other servers first",
				o.Cluster, leaderOf(o), o.From, name, name)
		}()
	}
	var found error
	for range addresses {
		if err := <-answers; found == nil {
			found = err
		}
	}
	return found
}

// leaderOf returns the name of the leader in the observing server's view; empty without one.
func leaderOf(o *clusterstatus.Observation) string {
	leader := ""
	for _, p := range o.Peers {
		if p.Member.Self && p.Status != nil {
			leader = p.Status.LeaderID
		}
	}
	for _, p := range o.Peers {
		if p.Member.ID == leader {
			return p.Member.Name
		}
	}
	return leader
}
