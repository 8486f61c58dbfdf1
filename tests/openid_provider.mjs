// The OpenID-certified provider "oidc-provider" (npm), for tests/test_monitor_sign_on_real.py.
//
//   node openid_provider.mjs MODULES SETTINGS
//
// MODULES: the folder node_modules that holds it. SETTINGS: JSON: port, redirect, users, keys, and
// ahead_ms, how far its clock is ahead of others'.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [modules, text] = process.argv.slice(2);
const settings = JSON.parse(text);
const resolve = createRequire(`${modules}/x.js`).resolve;
const { default: Provider } = await import(pathToFileURL(resolve('oidc-provider')).href);

const now = Date.now;
Date.now = () => now() + (settings.ahead_ms ?? 0);

const issuer = `http://127.0.0.1:${settings.port}`;
const provider = new Provider(issuer, {
  clients: ['paceline', 'other'].map((client_id) => ({
    client_id, client_secret: 'hush & rush', redirect_uris: [settings.redirect],
  })),
  ttl: { IdToken: 300 },
  claims: { openid: ['sub'], email: ['email', 'email_verified'], groups: ['groups'] },
  scopes: ['openid', 'email', 'groups'],
  conformIdTokenClaims: settings.userinfo,
  pkce: { required: () => true, methods: ['S256'] },
  jwks: { keys: settings.keys },
  cookies: { keys: ['of a test'] },
  findAccount: (_, id) => settings.users[id] && {
    accountId: id,
    claims: () => ({ sub: id, ...settings.users[id] }),
  },
});
provider.on('server_error', (_, error) => console.error(error));
provider.listen(settings.port, '127.0.0.1', () => console.log('listening'));
