//! The rights that `docs/redis.md` tells to give to a user.

/// What each `ACL SETUSER app …` of the page gives, in locks that are called `names`: a namespace
/// and a colon, or less. The password is `pw`.
pub(crate) fn rights(names: &str) -> Vec<Vec<String>> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/redis.md");
    let page = std::fs::read_to_string(page).unwrap();
    let blocks = page.split("```").filter_map(|it| it.strip_prefix("text\nACL SETUSER app "));
    let words = |block: &str| -> Vec<String> {
        let block =
            block.replace("NAMESPACE:", names).replace("PASSWORD", "pw").replace("~KEYS", "~*");
        block.split_whitespace().map(Into::into).collect()
    };
    blocks.map(words).collect()
}
