package devcluster

import (
	"fmt"
	"os"
	"path/filepath"
)

// Copy is the kubeconfig of a dev cluster: a copy of a server's, with another address. The servers
// renew theirs. The copy must follow, or the exchange of the CA makes it void. The zero Copy
// belongs to no dev cluster, and is never renewed.
type Copy struct {
	plan    *Plan // nil for another kubeconfig
	tell    func(text string)
	renewed bool
	tried   bool
}

// CopyAt returns the kubeconfig at path as a copy that can be renewed, if it is a dev cluster's.
// tell receives the error of a failed renewal.
func CopyAt(path string, tell func(text string)) *Copy {
	path, err := filepath.Abs(path)
	if err != nil {
		return new(Copy)
	}
	plan, err := Load(filepath.Dir(path))
	if err != nil || plan.Kubeconfig() != path {
		return new(Copy)
	}
	return &Copy{plan: plan, tell: tell}
}

// Renew reports whether this call has renewed the kubeconfig. It tries once.
func (c *Copy) Renew() bool {
	if c.plan == nil || c.tried {
		return false
	}
	c.tried = true
	err := c.plan.RenewKubeconfig()
	if err == nil {
		err = GiveToSudoer(c.plan.Kubeconfig(), os.Getenv, os.Chown)
	}
	if err != nil {
		c.tell(
			fmt.Sprintf("the kubeconfig of the dev cluster is not renewed: %v; `%s` renews it", err,
				CommandLine(c.plan.Dir, "up")))
	}
	c.renewed = err == nil
	return c.renewed
}

// Renewed returns the relative path of the kubeconfig, if it was renewed.
func (c *Copy) Renewed() (path string, renewed bool) {
	if !c.renewed {
		return "", false
	}
	return FromHere(c.plan.Kubeconfig()), true
}

// Afterwards returns the step of a user who does not wait for the end of the exchange.
func (c *Copy) Afterwards() string {
	if c.plan == nil {
		return ""
	}
	return fmt.Sprintf("; when it is done, `%s` renews the kubeconfig of the dev cluster",
		CommandLine(c.plan.Dir, "up"))
}
