package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/clock"
)

func clockFaults() []fault {
	return []fault{
		{name: "clock jumps: leader", spares: true, needs: clock.Possible, run: clockJumps(theLeader)},
		{name: "clock jumps: follower", spares: true, needs: clock.Possible, run: clockJumps(aFollower)},
		{name: "clock jumps: agent", spares: true, needs: clock.Possible, run: clockJumps(anAgent)},
	}
}

// jumps is how far a clock is moved.
var jumps = [...]time.Duration{30 * time.Second, -30 * time.Second, 10 * time.Minute, -10 * time.Minute, time.Hour,
	-time.Hour}

// clockJumps moves wall clocks for a while. No node may be taken for dead for it: an eviction is
// a failure.
func clockJumps(whom whoms) func(context.Context, *trial) error {
	return func(ctx context.Context, t *trial) error {
		nodes := whom(t)
		t.hit = nodes // and none may be taken for dead
		by := jumps[t.rnd.IntN(len(jumps))]
		t.say("%s by %v", nodes[0], by)
		back, err := t.Cluster.MoveClocks(by, nodes...)
		if err == nil {
			t.hold(ctx, 5*time.Second, 10*time.Second)
			err = t.checkClock(ctx, nodes[0], by)
		}
		if err == nil && by.Abs() <= clocksDiffer && nodes[0] != t.agents[0] {
			err = t.tokensHold(ctx, nodes[0])
		}
		if err := errors.Join(err, back()); err != nil {
			return err
		}
		status, err := t.awaitLeader(ctx)
		if err == nil && status.Leader != t.leader {
			t.say("%s; %s leads now", t.note, status.Leader)
		}
		return errors.Join(err, t.checkClock(ctx, nodes[0], 0))
	}
}

// clocksDiffer is the difference of the servers' clocks within which each server takes the tokens
// of all.
const clocksDiffer = 30 * time.Second

// tokensHold checks, when a server's clock is off, that a new token of its is good on the others,
// and one of theirs on it.
func (t *trial) tokensHold(ctx context.Context, node string) error {
	for _, issuer := range t.servers {
		var token string
		err := clustertest.Poll(ctx, time.Minute, func(ctx context.Context) error {
			r, err := issuer.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, "default",
				&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			if err == nil {
				token = r.Status.Token
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("a token of %s: %w", issuer.Name, err)
		}
		for _, reader := range t.servers {
			if (issuer.Name == node) == (reader.Name == node) {
				continue // the two clocks are the same
			}
			var review *authenticationv1.TokenReview
			err := clustertest.Poll(ctx, time.Minute, func(ctx context.Context) (err error) {
				review, err = reader.Client.AuthenticationV1().TokenReviews().Create(ctx,
					&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}},
					metav1.CreateOptions{})
				return err
			})
			if err != nil {
				return fmt.Errorf("show %s a token: %w", reader.Name, err)
			}
			if !review.Status.Authenticated {
				return fmt.Errorf("%s does not take a new token of %s: %s", reader.Name, issuer.Name,
					review.Status.Error)
			}
		}
	}
	return nil
}

// clockSlack is how far a clock may seem to be from where it was moved: an answer takes a while,
// and has whole seconds.
const clockSlack = 10 * time.Second

// checkClock asks a node's kubelet, which says by its own clock when it answered, whether the clock
// is off by so much.
func (t *trial) checkClock(ctx context.Context, node string, by time.Duration) error {
	address, err := t.addressOf(node)
	if err != nil {
		return err
	}
	// A node that has much to do may not answer at once.
	return clustertest.Poll(ctx, patience,
		func(ctx context.Context) error { return t.askClock(ctx, node, address, by) })
}

// askClock is checkClock, once.
func (t *trial) askClock(ctx context.Context, node, address string, by time.Duration) error {
	// The responder and its answer do not matter: there is no other clock at that address.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	ctx, cancel := clustertest.TryOnce(ctx)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+net.JoinHostPort(address, "10250")+"/",
		nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	response.Body.Close()
	told, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		return err
	}
	if off := time.Until(told); (off - by).Abs() > clockSlack {
		return fmt.Errorf("the clock of %s is %v off, and should be %v", node, off, by)
	}
	return nil
}

// addressOf is the address that a node had before the fault: while it lasts there may be no leader
// to ask.
func (t *trial) addressOf(node string) (string, error) {
	if address := t.addresses[node]; address != "" {
		return address, nil
	}
	return "", fmt.Errorf("%s was no member of the cluster before the fault", node)
}
