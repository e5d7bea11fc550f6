/* Drop what makes a question match nearly every page: the search looks for all words that begin with a word of the
query, so that "a" finds "acquire". Without its small words, plural endings and question mark, the rest decides. */
"use strict";

(() => {
  const QUERY = 2; // the type of a message that asks the search worker
  const SMALL = new Set(
    ("a about after all am an and any are as at be been but by can could did do does doing for from get gets had has have " +
      "her his how i if in into is it its just me must my need no not of on only or our out please she should so some than " +
      "that the their them then there these they this to too use used using want was we were what when where while " +
      "who whose why will with would you your").split(" "),
  );
  const COMMON = new Set(["lock", "redis", "redsync"]); // on all pages, so they tell nothing beside other words
  const { postMessage } = Worker.prototype;

  Worker.prototype.postMessage = function (message, ...others) {
    if (message?.type === QUERY && !message.data.includes('"')) {
      const words = message.data.split(/\s+/).map((word) => word.replace(/[?!.,;]+$/, ""));
      const kept = words.filter((word) => word && !SMALL.has(word.toLowerCase().replace(/['’].*$/, "")));
      const stems = kept.map((word) => word.replace(/(?<=\w{3}[^sui\W\d])s$/, ""));
      const telling = stems.filter((word) => !COMMON.has(word.toLowerCase()));
      message = { ...message, data: (telling.length ? telling : stems).join(" ") || message.data };
    }
    return postMessage.call(this, message, ...others);
  };
})();
