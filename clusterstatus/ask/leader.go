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

// HasLeader returns an error when another server of the survivor's cluster answers and follows a
// leader, or leads: nothing is lost then, and the recovered server would put an end to a cluster
// that is well. When nobody can be asked, there is none.
func HasLeader(ctx context.Context, survivor *backups.Survivor) error {
	config, err := remote.LoadConfig(filepath.Join(survivor.DataDir, "admin.kubeconfig"))
	if err != nil || survivor.Recovering != "" {
		return nil
	}
	return hasLeader(ctx, config, survivor.ClusterID, survivor.Name, enroll.KnownServers(survivor.DataDir))
}

// hasLeader asks the servers at the addresses, and returns an error when one of the cluster follows
// a leader, or leads: then the server of that name is not to be recovered.
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
			answers <- fmt.Errorf("cluster %s has a leader, %s, as server %s says: start %s instead, and nothing is lost. To recover %s all the same, stop the other servers first",
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

// leaderOf is the name of the leader that the server knows which made the observation; empty when
// it knows none.
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
